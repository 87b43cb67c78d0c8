"""Hostile requests against a real server (the sets L6, F13 and F20): each is refused quickly, takes no memory that stays, and
holds up no other request. Standard library only.

    python3 tests/e2e/hostile_test.py build/dev/tandem
"""

import http.client
import json
import os
import threading
import time
import unittest

from harness import QUESTION, ServerTest
from hostile_sets import BAD_JSON, CHATS, FIELDS, grammars

MIB = 1 << 20
ROUTES = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/v2/models/ensemble/generate",
    "/v2/models/ensemble/infer",
)


class HostileTest(ServerTest):
    def resident(self):
        """Bytes of memory that the server holds."""
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def processor_time(self):
        """Seconds that the server's threads have run, so that a busy machine makes no request slow."""
        with open(f"/proc/{self.server.process.pid}/stat", encoding="ascii") as fields:
            user, system = fields.read().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def timed(self, path, body):
        """(status, answer, seconds that the server needed)"""
        data = body if isinstance(body, (str, bytes)) else json.dumps(body)
        start, ran_before = time.monotonic(), self.processor_time()
        status, _, text = self.server.request("POST", path, data)
        return status, text, min(time.monotonic() - start, self.processor_time() - ran_before)

    def assert_serves(self):
        status, reply = self.server.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 4})
        self.assertEqual(status, 200, reply)


class Parameters(HostileTest):
    def refuse_all(self):
        for name, value in FIELDS:
            with self.subTest(field=name, value=str(value)[:60]):
                status, text, seconds = self.timed("/v1/completions", {"prompt": "x", name: value})
                self.assertEqual(status, 400, text)
                error = json.loads(text)["error"]
                self.assertEqual(error["type"], "invalid_request_error")
                self.assertEqual((error["param"] or "").split(".")[0].split("[")[0], name, text)
                self.assertLess(seconds, 0.1)
        status, text, _ = self.timed("/v1/completions", '{"prompt": "x", "max_tokens": -0}')
        self.assertEqual(status, 400, text)
        for body in CHATS:
            with self.subTest(chat=str(body)[:80]):
                status, text, seconds = self.timed("/v1/chat/completions", body)
                self.assertEqual(status, 400, text)
                self.assertLess(seconds, 0.1)

    def test_each_is_refused_by_its_name_and_leaves_nothing(self):
        self.assertGreaterEqual(len(FIELDS) + len(CHATS), 200)
        self.assert_serves()
        self.refuse_all()  # what is taken once and kept: threads' arenas, buffers of the log
        before = self.resident()
        self.refuse_all()
        self.assertLess(self.resident() - before, 5 * MIB)
        self.assert_serves()


class BadJson(HostileTest):
    arguments = ("--decoupled", "false")

    def test_each_is_refused(self):
        self.assert_serves()
        for route in ROUTES:
            for name, body in BAD_JSON.items():
                with self.subTest(route=route, body=name):
                    status, text, seconds = self.timed(route, body)
                    self.assertEqual(status, 400, text)
                    self.assertIn("error", json.loads(text))
                    self.assertLess(seconds, 0.2)
        self.assert_serves()

    def test_a_body_of_64_mib_is_refused_by_its_size(self):
        start = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        connection.putrequest("POST", "/tokenize")
        connection.putheader("Content-Length", str(64 * MIB))
        connection.endheaders()
        self.assertEqual(connection.getresponse().status, 413)
        self.assertLess(time.monotonic() - start, 0.2)
        connection.close()
        self.assert_serves()


class Neighbour:
    """A stream beside the hostile requests, again and again; the times between two of its events."""

    def __init__(self, server):
        self.server = server
        self.gaps = []
        self.failures = []
        self.stopping = False
        self.thread = threading.Thread(target=self.read_streams)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        self.thread.join()

    def wait_for(self, count):
        """The first gaps."""
        while len(self.gaps) < count:
            time.sleep(0.01)
        return self.gaps[:count]

    def read_streams(self):
        body = json.dumps({"prompt": QUESTION, "max_tokens": 800, "ignore_eos": True, "stream": True, "temperature": 1})
        while not self.stopping:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
            connection.request("POST", "/v1/completions", body)
            response = connection.getresponse()
            last, text = None, b""
            while line := response.readline():
                text = line
                if line.startswith(b"data:"):
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append(now - last)
                    last = now
                    if line.strip() == b"data: [DONE]":
                        break
            else:
                self.failures.append(text)
            connection.close()


class Grammars(HostileTest):
    def ask(self, fields, max_tokens):
        """(status, seconds that the server needed)"""
        body = {"prompt": QUESTION, "max_tokens": max_tokens, **fields}
        status, text, seconds = self.timed("/v1/completions", body)
        # 503: too many that went over their time are still ending; only those with a grammar wait for them.
        self.assertIn(status, (200, 400, 503), text)
        return status, seconds

    def ask_when_there_is_room(self, fields, max_tokens):
        deadline = time.monotonic() + 120
        while (answer := self.ask(fields, max_tokens))[0] == 503 and time.monotonic() < deadline:
            time.sleep(0.2)
        self.assertNotEqual(answer[0], 503)
        return answer

    def test_each_ends_its_own_request_only(self):
        requests = list(grammars())
        self.assertGreaterEqual(len(requests), 200)
        self.assert_serves()
        before = self.resident()
        costs, answers = [], {}
        for index, fields in enumerate(requests):
            with self.subTest(grammar=str(fields)[:100]):
                status, seconds = self.ask_when_there_is_room(fields, max_tokens=1)
                costs.append((seconds, index))
                answers[status] = answers.get(status, 0) + 1
        slowest = sorted(costs, reverse=True)
        print(
            f"{len(requests)} grammars, answers {answers}, slowest {slowest[0][0]:.2f} s:"
            f" {str(requests[slowest[0][1]])[:100]}; memory +{(self.resident() - before) / MIB:.0f} MiB"
        )
        # Two seconds to compile, and some for a thread that has to notice that they are over.
        self.assertLess(slowest[0][0], 2.5)

        with Neighbour(self.server) as neighbour:
            quiet = neighbour.wait_for(2000)
            for _, index in slowest[:24]:
                self.ask(requests[index], max_tokens=8)
        self.assertEqual(neighbour.failures, [])
        beside = neighbour.gaps[len(quiet) :]
        print(f"a neighbour's gaps alone: {describe(quiet)}; beside the 24 slowest: {describe(beside)}")
        # Compiling takes one of the cores from it, never the engine.
        self.assertLess(median(beside), 0.005 + 5 * median(quiet))
        self.assertLess(max(beside), 2)
        self.assertEqual(self.ask_when_there_is_room({"guided_choice": ["yes", "no"]}, 8)[0], 200)
        self.assert_serves()


def median(gaps):
    return sorted(gaps)[len(gaps) // 2]


def describe(gaps):
    ordered = [f"{seconds * 1e3:.1f}" for seconds in sorted(gaps)]
    return f"median {ordered[len(gaps) // 2]} ms, 99.9 % {ordered[len(gaps) * 999 // 1000]} ms, longest {ordered[-1]} ms"


if __name__ == "__main__":
    unittest.main()
