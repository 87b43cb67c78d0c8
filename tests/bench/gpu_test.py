"""The tables of bench/gpu.py, with a program that answers at once. Needs no GPU.

    python3 -B tests/bench/gpu_test.py
"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

import gpu

ROWS = {
    "rows": [
        {"prompt_tokens": 8192, "cold_s": 0.13, "cached_s": 0.003, "runs": [1, 2]},
        {"prompt_tokens": 32768, "cold_s": 0.8, "cached_s": 0.004, "runs": []},
    ]
}
FIRST_TOKEN = "First token, Llama-3.1-8B fp8"


class GpuTablesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tandem = self.folder / "tandem"
        self.answer("1", ROWS)

    def answer(self, version, figures):
        """Makes a program of that version that measures these figures."""
        self.tandem.write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && echo tandem {version} || echo '{json.dumps(figures)}'\n")
        self.tandem.chmod(0o755)

    def run_script(self, *arguments, device="NVIDIA H200"):
        """(exit code, standard error) of the script."""
        command = ["gpu.py", "speculation", "--tandem", str(self.tandem), "--out", str(self.folder / "out"), *arguments]
        errors = io.StringIO()
        with mock.patch.object(gpu, "device", lambda: device), mock.patch.object(sys, "argv", command), \
                contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            try:
                return gpu.main(), errors.getvalue()
            except SystemExit as end:
                return end.code, errors.getvalue()

    def table(self):
        return (self.folder / "out" / "gpu-speculation.md").read_text()

    def test_each_figure_stands_beside_what_is_asked_of_it(self):
        self.assertEqual(self.run_script("--only", FIRST_TOKEN), (0, ""))
        self.assertIn(f"| {FIRST_TOKEN}: prompt_tokens 8192 | cold_s | 0.13 | 0.145 | 0.125 | 0.12 |", self.table())
        self.assertIn(f"| {FIRST_TOKEN}: prompt_tokens 32768 | cold_s | 0.8 | 0.92 | 0.88 | 0.85 |", self.table())
        self.assertIn(f"| {FIRST_TOKEN}: prompt_tokens 32768 | cached_s | 0.004 |  |  | 0.01 |", self.table())

    def test_lists_are_no_cells(self):
        self.run_script("--only", FIRST_TOKEN)
        self.assertIn("| prompt_tokens | cold_s | cached_s |", self.table())

    def test_runs_of_another_version_are_replaced_and_it_says_so(self):
        self.run_script("--only", "start 1")
        self.run_script("--only", "start 2")
        self.assertIn("start 1", self.table())
        self.answer("2", ROWS)
        code, errors = self.run_script("--only", "start 3")
        self.assertEqual(code, 0)
        self.assertIn("its runs are of tandem 1; NVIDIA H200; it is replaced", errors)
        self.assertNotIn("start 1", self.table())

    def test_a_file_of_something_else_is_replaced_and_it_says_so(self):
        for text in ("{", "[]", '{"version": "tandem 1", "device": "NVIDIA H200", "runs": {}}'):
            (self.folder / "out").mkdir(exist_ok=True)
            (self.folder / "out" / "gpu-speculation.json").write_text(text)
            code, errors = self.run_script("--only", "start 1")
            self.assertEqual(code, 0, text)
            self.assertIn("it holds no runs of this script; it is replaced", errors)

    def test_smoke_figures_are_marked_and_never_kept_beside_others(self):
        self.run_script("--only", "start 1", "--smoke")
        self.assertIn("SMOKE", self.table())
        self.assertNotIn("asked", self.table())
        self.run_script("--only", "start 2")
        self.assertNotIn("start 1", self.table())

    def test_without_a_gpu_it_says_what_to_do(self):
        code, errors = self.run_script(device=None)
        self.assertEqual(code, 2)
        self.assertIn("no NVIDIA GPU here; --smoke", errors)

    def test_a_missing_program_is_named(self):
        code, errors = self.run_script("--tandem", str(self.folder / "none"))
        self.assertEqual(code, 2)
        self.assertIn("--tandem names the program", errors)

    def test_a_run_that_fails_keeps_the_reason(self):
        self.tandem.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo tandem 1 && exit\necho no memory >&2; exit 1\n")
        self.assertEqual(self.run_script("--only", "start 1")[0], 1)
        self.assertIn("FAILED: no memory", self.table())


if __name__ == "__main__":
    unittest.main()
