"""Tandem and the huggingface_hub package share one cache: what the one has downloaded the other uses.

    tools/test_python --with clients tests/clients/huggingface_hub_test.py build/dev/tandem
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from fake_stores import Hub  # noqa: E402
from harness import REPOSITORY, TANDEM  # noqa: E402

DRAFT = {path.name: path.read_bytes() for path in (REPOSITORY / "models/dictionary/draft").iterdir()}

# The package reads its environment when it is imported.
DOWNLOAD = """
import huggingface_hub, sys
print(huggingface_hub.snapshot_download("owner/draft", local_files_only="local" in sys.argv, allow_patterns=["*.json", "*.safetensors"]))
"""


class HuggingFaceHubTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.hub = Hub({"owner/draft": DRAFT})
        self.addCleanup(self.hub.close)
        self.environment = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()} | {
            "HF_HOME": self.temporary.name,
            "HF_ENDPOINT": self.hub.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    def run_program(self, *command):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.strip()

    def contents(self):
        return sum(1 for method, path, _ in self.hub.requests if method == "GET" and "/resolve/" in path)

    def test_what_the_package_downloads_serves_tandem(self):
        self.run_program(sys.executable, "-c", DOWNLOAD)
        before = self.contents()
        self.assertGreater(before, 0)
        self.run_program(TANDEM, "inspect", "owner/draft")
        self.assertEqual(self.contents(), before)
        self.run_program(TANDEM, "inspect", "owner/draft", "--offline")

    def test_what_tandem_downloads_serves_the_package(self):
        self.run_program(TANDEM, "inspect", "owner/draft")
        before = self.contents()
        self.assertGreater(before, 0)
        folder = Path(self.run_program(sys.executable, "-c", DOWNLOAD, "local"))
        self.assertEqual((folder / "model.safetensors").read_bytes(), DRAFT["model.safetensors"])
        self.assertEqual(Path(self.run_program(sys.executable, "-c", DOWNLOAD)), folder)
        self.assertEqual(self.contents(), before)


if __name__ == "__main__":
    unittest.main()
