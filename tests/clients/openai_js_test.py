"""OpenAI's JavaScript client against a real server, run by node with the packages that ./setup installs from
tests/clients/openai_js/package-lock.json.

    python3 tests/clients/openai_js_test.py build/dev/tandem
"""

import filecmp
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from harness import REPOSITORY, ServerTest

SOURCES = REPOSITORY / "tests/clients/openai_js"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tandem"
PACKAGES = Path(os.environ.get("TANDEM_CACHE", CACHE)) / "test-environment-js"
SKIPPED = 77


class OpenAiJs(ServerTest):
    # A queue of two, so that twelve requests at once meet a full one.
    arguments = ("--api_key", "sk-secret", "--max_batch_size", "2", "--max_queue_size", "4")

    def test_the_suite_passes(self):
        # Node looks for packages beside the file.
        shutil.copy(SOURCES / "openai.test.mjs", PACKAGES)
        done = subprocess.run(
            ["node", "--test", PACKAGES / "openai.test.mjs"],
            env={**os.environ, "TANDEM_URL": f"http://127.0.0.1:{self.server.port}", "TANDEM_KEY": "sk-secret"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^(# |ℹ )pass 8$")


if __name__ == "__main__":
    if not PACKAGES.exists():
        print("skipped: ./setup installs the client where node is, and has not done so here")
        sys.exit(SKIPPED)
    lock = "package-lock.json"
    if not filecmp.cmp(SOURCES / lock, PACKAGES / lock, shallow=False):
        sys.exit(f"the packages in {PACKAGES} are not those of tests/clients/openai_js/{lock}; ./setup installs them")
    unittest.main()
