"""Shared by the tests of compat/: a copy of the folder, and shell lines in it as the old documents have them."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMPAT = Path(__file__).resolve().parents[2] / "compat"
MODELS = "all_models/inflight_batcher_llm"


def shell(lines, folder, **variables):
    """Runs lines of a document with this Python; returns the completed process."""
    return subprocess.run(
        ["bash", "-euc", 'python3() { "$PYTHON" "$@"; }; python() { "$PYTHON" "$@"; }\n' + lines],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


class OldTreeTest(unittest.TestCase):
    """Each test has a copy of compat/ in `self.tree`."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name) / "tensorrtllm_backend"
        shutil.copytree(COMPAT, self.tree, ignore=shutil.ignore_patterns("__pycache__"))

    def run_lines(self, lines, **variables):
        """The lines succeed and report nothing."""
        done = shell(lines, self.tree, **variables)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout
