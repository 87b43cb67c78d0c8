"""scripts/launch_triton_server.py: what it starts, under which name, and when it refuses.

The server is a script that writes down how it was called. No test depends on the processes of the machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

from old_tree import COMPAT, OldTreeTest

sys.path.insert(0, str(COMPAT / "scripts"))

import launch_triton_server as launch  # noqa: E402  (the folder has to be known first)

RECORDER = """#!{python}
import json, os, sys
calls = os.environ["RECORD"]
with open(calls + ".part", "w") as file:
    json.dump([sys.argv, {{k: v for k, v in os.environ.items() if k.startswith("TRTLLM_")}}], file)
os.rename(calls + ".part", calls)
"""
# As the old documents have them.
SEED_LINES = {
    "python3 scripts/launch_triton_server.py --world_size=1 --model_repo=REPO": ([], {}),
    "python scripts/launch_triton_server.py --model_repo REPO --world_size 1": ([], {}),
    "python3 scripts/launch_triton_server.py --model_repo=REPO --multi-model --log": ([], {"TRTLLM_ORCHESTRATOR": "1"}),
    "python3 scripts/launch_triton_server.py --model_repo=REPO "
    '--tensorrt_llm_model_name "tensorrt_llm,tensorrt_llm_draft" --multi-model': (
        ["--tensorrt_llm_model_name"],
        {"TRTLLM_ORCHESTRATOR": "1"},
    ),
    "python3 scripts/launch_triton_server.py --model_repo REPO "
    "--tensorrt_llm_model_name tensorrt_llm,tensorrt_llm_draft "
    "--multi-model --world_size 4 --disable-spawn-process": (
        ["--tensorrt_llm_model_name"],
        {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"},
    ),
}


def wait_for(condition):
    end = time.monotonic() + 60
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError("nothing happened within 60 s")
        time.sleep(0.01)
    return found


def make_program(path, text=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or RECORDER.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


class LaunchTest(OldTreeTest):
    def setUp(self):
        super().setUp()
        self.repository = self.tree / "repo"
        self.repository.mkdir()
        self.record = self.tree / "record.json"
        self.server = make_program(self.tree / "elsewhere/tritonserver")

    def launched(self, line, **environment):
        """(output of the script, arguments of the server, its TRTLLM_ variables) for a line of a document."""
        self.record.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "-euc", 'python3() { "$PYTHON" -B "$@" --force; }; python() { python3 "$@"; }\n' + line],
            cwd=self.tree,
            env={**os.environ, "PYTHON": sys.executable, "RECORD": str(self.record), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        wait_for(self.record.exists)
        arguments, variables = json.loads(self.record.read_text())
        return done.stdout, arguments[1:], variables

    def test_the_lines_of_the_documents_start_one_server_with_tritons_flags(self):
        for line, (without_effect, variables) in SEED_LINES.items():
            with self.subTest(line):
                line = line.replace("REPO", str(self.repository)) + f" --tritonserver {self.server}"
                output, arguments, seen = self.launched(line)
                expected = [
                    f"--model-repository={self.repository}",
                    "--http-port=8000",
                    "--grpc-port=8001",
                    "--metrics-port=8002",
                    "--disable-auto-complete-config",
                ]
                if "--world_size 4" in line:
                    expected += ["--world-size=4"]
                if "--log" in line:
                    expected += ["--log-verbose=3", "--log-file=triton_log.txt"]
                self.assertEqual(arguments, expected)
                self.assertEqual(seen, variables)
                named = f"without effect in one process: {', '.join(without_effect)}\n" if without_effect else ""
                self.assertTrue(output.startswith(named + "tritonserver started as process"), output)

    def test_only_flags_that_differ_from_their_default_are_named_as_without_effect(self):
        line = f"python3 scripts/launch_triton_server.py --model_repo repo --tritonserver {self.server} "
        self.assertNotIn("without effect", self.launched(line + "--world_size 1")[0])
        output, arguments, _ = self.launched(
            line + "--no-mpi --oversubscribe --trtllm_llmapi_launch --multimodal_gpu0_cuda_mem_pool_bytes 5"
        )
        self.assertIn(
            "without effect in one process: --multimodal_gpu0_cuda_mem_pool_bytes, --oversubscribe, --no-mpi, "
            "--trtllm_llmapi_launch\n",
            output,
        )
        self.assertNotIn("mpi", " ".join(arguments))

    def test_ports_log_file_and_exit_timeout_reach_the_server(self):
        _, arguments, _ = self.launched(
            f"python3 scripts/launch_triton_server.py --model_repo repo --tritonserver {self.server} --http_port 1 "
            "--grpc_port=2 --metrics_port 3 --log --log-file other.txt --exit_timeout 9"
        )
        self.assertEqual(
            arguments,
            [
                "--model-repository=repo",
                "--http-port=1",
                "--grpc-port=2",
                "--metrics-port=3",
                "--disable-auto-complete-config",
                "--log-verbose=3",
                "--log-file=other.txt",
                "--exit-timeout-secs=9",
            ],
        )

    def test_a_mounted_scripts_folder_is_enough_with_the_program_beside_it_or_on_the_path(self):
        mounted = self.tree / "opt/scripts"
        shutil.copytree(self.tree / "scripts", mounted)
        line = "python opt/scripts/launch_triton_server.py --model_repo repo --world_size 1"
        there = make_program(self.tree / "bin/tandem")
        self.assertIn(there, self.launched(line, PATH=f"{self.tree / 'bin'}:{os.environ['PATH']}", TANDEM="")[0])
        beside = make_program(mounted / "tandem")
        self.assertIn(beside, self.launched(line, TANDEM="")[0])
        named = make_program(mounted / "tritonserver")
        self.assertIn(named, self.launched(line, TANDEM="")[0])

    def test_the_program_of_a_bundle_and_of_tandem_in_the_environment_are_found(self):
        line = "python scripts/launch_triton_server.py --model_repo repo"
        bundled = make_program(self.tree.parent / "bin/tandem")
        self.assertIn(bundled, self.launched(line, TANDEM="")[0])
        named = make_program(self.tree / "own/tandem")
        self.assertIn(named, self.launched(line, TANDEM=named)[0])

    def test_all_other_flags_go_to_the_server(self):
        _, arguments, _ = self.launched(
            f"python3 scripts/launch_triton_server.py --host 0.0.0.0 --model_repo repo --tritonserver {self.server} "
            "--log_level info --insecure --http-port=9"
        )
        self.assertEqual(
            arguments[-6:], ["--host", "0.0.0.0", "--log_level", "info", "--insecure", "--http-port=9"], arguments
        )

    def test_a_server_that_ends_at_once_is_told(self):
        proc = self.tree / "proc"
        proc.mkdir()
        for script, reason in (("exit 2", "exit code 2"), ("kill -9 $$", "SIGKILL")):
            server = make_program(self.tree / "failing/tritonserver", f"#!/bin/sh\n{script}\n")
            with mock.patch.object(launch, "EARLY_SECONDS", 60):
                self.assertIn(f"ended at once ({reason})", self.refused(f"--tritonserver={server}", proc=proc))

    def test_a_server_that_runs_is_left_running(self):
        server = launch.start(shutil.which("sleep"), ["60"])
        try:
            with mock.patch.object(launch, "EARLY_SECONDS", 0):
                self.assertIsNone(launch.failure(server))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)

    def refused(self, *arguments, proc):
        with mock.patch("sys.stderr"), self.assertRaises(SystemExit) as refusal:
            launch.main([f"--model_repo={self.repository}", *arguments], proc=proc)
        return str(refusal.exception.code)

    def process(self, number, stat):
        folder = self.tree / "proc" / str(number)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{number} {stat} 1 1")
        return self.tree / "proc"

    def test_a_running_server_is_named_and_force_starts_another(self):
        proc = self.process(41, "(tritonserver) S")
        self.process(40, "(tritonserver) Z")
        self.process(42, "(bash (tritonserver) S")
        (proc / "self").mkdir()
        self.assertEqual(launch.running_servers(proc), [41])
        self.assertIn("process 41", self.refused(f"--tritonserver={self.server}", proc=proc))
        with mock.patch.dict(os.environ, RECORD=str(self.record)), mock.patch("builtins.print"):
            launch.main([f"--model_repo={self.repository}", f"--tritonserver={self.server}", "--force"], proc=proc)
        wait_for(self.record.exists)

    def test_a_missing_repository_and_a_missing_program_are_named(self):
        proc = self.tree / "proc"
        proc.mkdir()
        self.assertIn("/nowhere", self.refused("--tritonserver=/nowhere", proc=proc))
        done = subprocess.run(
            [sys.executable, "-B", COMPAT / "scripts/launch_triton_server.py", "--model_repo=missing"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no folder missing", done.stderr)


class NameTest(unittest.TestCase):
    def test_a_program_of_another_name_runs_as_tritonserver(self):
        process = launch.start(shutil.which("sleep"), ["60"])
        try:
            # The system sets a process's name and, later, its arguments a moment after the call that executes the file.
            proc = Path(f"/proc/{process.pid}")
            self.assertEqual(wait_for((proc / "cmdline").read_bytes), b"tritonserver\x0060\x00")
            self.assertEqual((proc / "comm").read_text(), "tritonserver\n")
            self.assertEqual(os.getsid(process.pid), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


if __name__ == "__main__":
    unittest.main()
