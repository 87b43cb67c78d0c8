"""Shared by the end-to-end tests: a real server on a free port, and requests to it. Standard library only.

    python3 tests/e2e/server_test.py build/dev/tandem
"""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TANDEM = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build/dev/tandem"
QUESTION = 'What does "tandem" mean?'


def answer_key():
    with open(REPOSITORY / "models/dictionary/key.tsv", encoding="ascii") as lines:
        return dict(line.rstrip("\n").split("\t") for line in lines)


def tandem(*arguments, check=True):
    """Runs a verb to its end; returns the completed process."""
    done = subprocess.run([TANDEM, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    if check and done.returncode != 0:
        raise AssertionError(f"tandem {' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


class Server:
    """`tandem serve` on a port of the system's choice; stopped by its own process id."""

    command = (TANDEM, "serve")

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [*self.command, "--port", "0", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r"https?://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise AssertionError("the server ended early:\n" + "".join(self.lines))
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()

    def await_line(self, part, seconds=10):
        """Waits until the server has said something with `part`, which may be after it has begun to listen."""
        end = time.monotonic() + seconds
        while part not in "".join(self.lines):
            if time.monotonic() > end:
                raise AssertionError(f"{part!r} is not in\n" + "".join(self.lines))
            time.sleep(0.02)

    def stop(self, with_signal=signal.SIGTERM):
        """Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        code = self.process.wait(timeout=60)
        self.reader.join(timeout=10)
        self.process.stdout.close()
        return code

    def request(self, method, path, body=None, headers=None):
        """(status, headers, text)"""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()

    def post(self, path, body):
        """(status, parsed JSON)"""
        status, _, text = self.request("POST", path, body)
        return status, json.loads(text)

    def generate(self, text, **fields):
        return self.post("/v2/models/ensemble/generate", {"text_input": text, "max_tokens": 120, **fields})

    def events(self, path, body):
        """The data of each server-sent event."""
        status, headers, text = self.request("POST", path, body)
        if status != 200:
            raise AssertionError(f"{status}: {text}")
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        return [line[len("data:") :].strip() for line in text.split("\n") if line.startswith("data:")]

    def stream(self, text, **fields):
        events = self.events(
            "/v2/models/ensemble/generate_stream", {"text_input": text, "max_tokens": 120, "stream": True, **fields}
        )
        return [json.loads(event)["text_output"] for event in events]

    def metric(self, name):
        _, _, text = self.request("GET", "/metrics")
        for line in text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name} in\n{text}")


class ServerTest(unittest.TestCase):
    """Tests that share one server; `arguments` are its options."""

    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, f"the server ended with {code}:\n{''.join(cls.server.lines)}"
