"""Ranks that are processes, as Open MPI starts them and by hand: the embedded pair answers as on one, a process that is killed ends
every request with an error at once, and the same command lines start again."""

import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from harness import TANDEM, Server, answer_key, tandem

KEY = answer_key()
WORDS = list(KEY)[::800]
QUESTION = 'What does "{}" mean?'


class Leader(Server):
    """Process 0 of several; the others are started with it, with the same command line."""

    jobs = 0

    def __init__(self, size, *arguments, rank_arguments=(), **environment):
        Leader.jobs += 1
        job = f"tandem-e2e-{os.getpid()}-{Leader.jobs}"
        base = {**os.environ, "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": job}
        command = [TANDEM, "serve", "--device", "cpu", "--port", "0", *map(str, arguments)]
        self.others = [
            subprocess.Popen(
                [*command, *map(str, rank_arguments)],
                env={**base, **environment, "OMPI_COMM_WORLD_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(1, size)
        ]
        self.lines = []
        self.process = subprocess.Popen(
            command, env={**base, "OMPI_COMM_WORLD_RANK": "0"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()

    def end(self):
        """The exit codes of all, the leader first, and what the others said."""
        codes = [self.stop()]
        said = [other.communicate(timeout=60)[0] for other in self.others]
        return codes + [other.returncode for other in self.others], said


def open_stream(server, tokens):
    """A request that streams; its response, after the first event."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"text_input": QUESTION.format("tandem"), "max_tokens": tokens, "stream": True, "end_id": -1}
    connection.request("POST", "/v2/models/ensemble/generate_stream", json.dumps(body))
    response = connection.getresponse()
    response.readline()
    return connection, response


class ProcessesTest(unittest.TestCase):
    def expect_answers(self, server):
        def ask(numbered):
            number, word = numbered
            if number % 2 == 0:
                return "".join(server.stream(QUESTION.format(word)))
            status, answer = server.generate(QUESTION.format(word))
            self.assertEqual(status, 200, answer)
            return answer["text_output"]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for word, answer in zip(WORDS, pool.map(ask, enumerate(WORDS))):
                self.assertIn(KEY[word], answer)

    def test_they_answer_as_one_and_end_together(self):
        for size, options in (
            (2, ()),
            (4, ("--draft_tensor_parallel_size", "1")),
            (2, ("--no_draft",)),
            (2, ("--pipeline_parallel_size", "2")),
            (4, ("--pipeline_parallel_size", "2")),
            (3, ("--draft_device", "cpu")),
        ):
            with self.subTest(size=size, options=options):
                server = Leader(size, *options)
                self.expect_answers(server)
                codes, said = server.end()
                self.assertEqual(codes, [0] * size, said)

    @unittest.skipUnless(shutil.which("mpirun"), "./setup installs mpirun, which is not here")
    def test_mpirun_starts_them(self):
        class Mpi(Server):
            command = ("mpirun", "-n", "2", TANDEM, "serve")

        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        for _ in range(2):  # and again
            server = Mpi("--device", "cpu", "--tensor_parallel_size", "2")
            self.expect_answers(server)
            server.stop()
        answer = subprocess.run(
            ["mpirun", "-n", "2", TANDEM, "run", "--device", "cpu", "--input_text", "Define tandem", "--max_output_len", "60"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(answer.returncode, 0, answer.stderr)
        alone = tandem("run", "--device", "cpu", "--input_text", "Define tandem", "--max_output_len", "60").stdout
        # How many drafts there were follows the passes' times.
        self.assertEqual(answer.stdout.splitlines()[:-1], alone.splitlines()[:-1])

    def test_a_killed_process_ends_every_request_within_a_second_and_a_new_start_serves(self):
        for idle in (False, True):
            with self.subTest(idle=idle):
                server = Leader(4, "--max_seq_len", "512")
                streams = [] if idle else [open_stream(server, 480) for _ in range(4)]
                self.assertEqual(server.request("GET", "/v2/health/live")[0], 200)
                server.others[1].send_signal(signal.SIGKILL)
                killed = time.monotonic()
                for connection, response in streams:
                    rest = response.read().decode()
                    self.assertIn("the engine has failed", rest)
                    connection.close()
                while server.request("GET", "/v2/health/live")[0] == 200:
                    self.assertLess(time.monotonic() - killed, 10, "still live")
                    time.sleep(0.02)
                # The promise is a second; a loaded machine gets more.
                self.assertLess(time.monotonic() - killed, 5)
                status, answer = server.generate("Define tandem")
                self.assertEqual(status, 503, answer)
                codes, said = server.end()
                self.assertEqual(codes[2], -signal.SIGKILL)
                self.assertEqual((codes[1], codes[3]), (0, 0), said)
        again = Leader(4)
        self.expect_answers(again)
        self.assertEqual(again.end()[0], [0] * 4)

    def test_a_leader_that_is_killed_ends_the_others(self):
        server = Leader(2)
        server.process.kill()
        server.process.wait()
        said = server.others[0].communicate(timeout=30)[0]
        self.assertEqual(server.others[0].returncode, 6, said)
        self.assertIn("rank 0 has left", said)

    def test_a_signal_to_all_lets_open_requests_finish(self):
        server = Leader(2, "--max_seq_len", "512")
        connection, response = open_stream(server, 200)
        for process in (*server.others, server.process):
            process.send_signal(signal.SIGTERM)
        events = response.read().decode().count("data:")
        connection.close()
        self.assertGreater(events, 20)
        server.process.wait(timeout=60)  # a second signal would cut it short
        codes, said = server.end()
        self.assertEqual(codes, [0, 0], said)

    def test_processes_of_other_command_lines_are_refused(self):
        server = Leader(2, rank_arguments=("--max_batch_size", "3"))
        codes, said = server.end()
        self.assertEqual(codes, [5, 5], said)
        for text in ("".join(server.lines), said[0]):
            self.assertIn("give all of them the same command line", text)

    def test_processes_that_load_other_weights_are_refused(self):
        for others in (("--weights", "int8"), ("--kv_cache_dtype", "fp8")):
            with self.subTest(others=others):
                server = Leader(2, rank_arguments=others)
                codes, said = server.end()
                self.assertEqual(codes, [5, 5], said)
                self.assertIn("the same command line", "".join(server.lines))

    def test_stages_whose_cache_bounds_the_sequences_serve(self):
        server = Leader(4, "--pipeline_parallel_size", "4", "--kv_cache_bytes", "1000000", "--no_draft")
        self.expect_answers(server)
        self.assertEqual(server.end()[0], [0] * 4)

    def test_what_is_missing_or_does_not_fit_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            secret = Path(folder) / "secret"
            secret.write_text("between us")
            for options, named in (
                (("--num_processes", "2"), "--process_rank"),
                (("--num_processes", "2", "--process_rank", "0"), "--leader_address"),
                (("--num_processes", "2", "--process_rank", "2"), "the last one is number 1"),
                (("--num_processes", "2", "--process_rank", "0", "--leader_address", "192.0.2.1"), "--rank_secret_file"),
                (
                    ("--num_processes", "2", "--process_rank", "0", "--leader_address", "127.0.0.1:0", "--rank_secret_file", str(secret), "--tensor_parallel_size", "3"),
                    "--tensor_parallel_size 3: there are 2 processes",
                ),
            ):
                with self.subTest(options=options):
                    done = tandem("run", "--device", "cpu", "--input_text", "x", *options, check=False)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn(named, done.stderr)

    def test_a_process_that_should_use_a_gpu_and_has_none_waits_for_nobody(self):
        done = subprocess.run(
            [TANDEM, "run", "--device", "cuda", "--input_text", "x", "--num_processes", "2", "--process_rank", "0", "--leader_address", "unix:tandem-no-gpu"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--device: this process can use no GPU", done.stderr)

    def test_processes_meet_over_tcp_with_a_secret(self):
        with tempfile.TemporaryDirectory() as folder:
            secret = Path(folder) / "secret"
            secret.write_text("between us\n")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command = [TANDEM, "run", "--device", "cpu", "--input_text", "Define tandem", "--max_output_len", "60"]
            command += ["--nnodes", "2", "--dist_init_addr", f"127.0.0.1:{port}", "--rank_secret_file", str(secret)]
            other = subprocess.Popen([*command, "--node_rank", "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            leader = subprocess.run([*command, "--node_rank", "0"], capture_output=True, text=True, timeout=120)
            said = other.communicate(timeout=60)[0]
            self.assertEqual((leader.returncode, other.returncode), (0, 0), leader.stderr + said)
            self.assertIn("tandem", leader.stdout)


if __name__ == "__main__":
    unittest.main()
