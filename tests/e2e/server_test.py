"""The server from the users' view, over the embedded pair."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import signal
import socket
import tempfile
import time
import unittest
from pathlib import Path

from harness import QUESTION, Server, ServerTest, answer_key, tandem

KEY = answer_key()
# The body of the curl line in Triton's guide, unchanged.
SEED_BODY = (
    '{"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": "", '
    '"pad_id": 2, "end_id": 2}'
)
NESTED_SEED_BODY = (
    '{"text_input": "How do I count to nine in French?",\n'
    '"parameters": {"max_tokens": 100, "bad_words":[""],"stop_words":[""]}}'
)


class GenerateTest(ServerTest):
    def test_answers_the_question_from_the_key(self):
        status, reply = self.server.generate(QUESTION)
        self.assertEqual(status, 200)
        self.assertEqual(reply["text_output"], KEY["tandem"])

    def test_the_table_at_the_start_has_every_name_of_the_model(self):
        shown = "".join(self.server.lines)
        for name in ("tandem", "ensemble", "tensorrt_llm_bls"):
            self.assertRegex(shown, rf"\| {name} +\| 1       \| READY  \|")

    def test_answers_the_seeds_curl_line_with_its_fields(self):
        for model in ("ensemble", "tensorrt_llm_bls"):
            status, reply = self.server.post(f"/v2/models/{model}/generate", SEED_BODY)
            self.assertEqual(status, 200, reply)
            self.assertTrue(reply["text_output"])
            self.assertNotIn("machine learning", reply["text_output"])
            self.assertEqual(reply["model_name"], model)
            self.assertEqual(reply["model_version"], "1")
        _, reply = self.server.post("/v2/models/ensemble/generate", SEED_BODY)
        self.assertEqual(
            sorted(reply),
            [
                "cum_log_probs",
                "model_name",
                "model_version",
                "output_log_probs",
                "sequence_end",
                "sequence_id",
                "sequence_start",
                "text_output",
            ],
        )
        self.assertEqual(list(reply), sorted(reply))
        self.assertEqual(reply["cum_log_probs"], 0.0)
        self.assertEqual(set(reply["output_log_probs"]), {0.0})
        self.assertEqual(reply["sequence_id"], 0)

    def test_answers_nested_parameters(self):
        status, reply = self.server.post("/v2/models/ensemble/generate", NESTED_SEED_BODY)
        self.assertEqual(status, 200, reply)
        self.assertTrue(reply["text_output"])

    def test_twenty_parallel_seed_requests_answer_alike(self):
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            replies = list(
                pool.map(lambda _: self.server.post("/v2/models/ensemble/generate", SEED_BODY), range(20))
            )
        self.assertEqual({status for status, _ in replies}, {200})
        self.assertEqual(len({reply["text_output"] for _, reply in replies}), 1)

    def test_streams_one_event_a_token(self):
        pieces = self.server.stream(QUESTION)
        self.assertEqual("".join(pieces), KEY["tandem"])
        self.assertGreater(len(pieces), 10)
        self.assertEqual(len(self.server.stream(QUESTION, max_tokens=7)), 7)

    def test_stops_before_a_stop_word(self):
        _, reply = self.server.generate(QUESTION, stop_words=["arrangement"])
        self.assertEqual(reply["text_output"], KEY["tandem"].split("arrangement")[0])

    def test_never_says_a_bad_word(self):
        _, reply = self.server.generate(QUESTION, bad_words=["arrangement"])
        self.assertNotIn("arrangement", reply["text_output"])
        self.assertTrue(reply["text_output"])


class SpeculationTest(ServerTest):
    def test_64_concurrent_streams_equal_single_answers_and_leave_no_block(self):
        words = list(KEY)[:: len(KEY) // 64][:64]
        questions = [f'What does "{word}" mean?' for word in words]
        alone = [self.server.generate(question)[1]["text_output"] for question in questions]
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            together = list(pool.map(lambda question: "".join(self.server.stream(question)), questions))
        self.assertEqual(together, alone)
        for _ in range(50):
            if self.server.metric('tandem_kv_blocks{state="referenced"}') == 0:
                break
            time.sleep(0.1)
        self.assertEqual(self.server.metric('tandem_kv_blocks{state="referenced"}'), 0)
        self.assertGreater(self.server.metric("tandem_drafts_accepted_total"), 0)


class OpenAiTest(ServerTest):
    def chat(self, **fields):
        return {"model": "tandem", "messages": [{"role": "user", "content": QUESTION}], **fields}

    def test_chat_answers_with_usage(self):
        status, reply = self.server.post("/v1/chat/completions", self.chat())
        self.assertEqual(status, 200, reply)
        choice = reply["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertEqual(choice["message"]["content"], KEY["tandem"])
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertGreater(reply["usage"]["completion_tokens"], 5)
        self.assertIn("accepted_prediction_tokens", json.dumps(reply["usage"]))

    def test_chat_streams_to_done_with_usage(self):
        events = self.server.events(
            "/v1/chat/completions", self.chat(stream=True, stream_options={"include_usage": True})
        )
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(event) for event in events[:-1]]
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        self.assertEqual(text, KEY["tandem"])
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertGreater(chunks[-1]["usage"]["completion_tokens"], 5)

    def test_n_choices_with_a_seed_repeat(self):
        body = self.chat(n=3, temperature=1.5, seed=7, max_tokens=20)
        first, second = (self.server.post("/v1/chat/completions", body)[1]["choices"] for _ in range(2))
        self.assertEqual([c["message"] for c in first], [c["message"] for c in second])
        self.assertEqual([c["index"] for c in first], [0, 1, 2])

    def test_completions_and_models(self):
        _, reply = self.server.post("/v1/completions", {"model": "tandem", "prompt": QUESTION, "max_tokens": 120})
        self.assertEqual(reply["choices"][0]["text"], KEY["tandem"])
        status, _, text = self.server.request("GET", "/v1/models")
        self.assertEqual(status, 200)
        self.assertTrue(json.loads(text)["data"][0]["id"])

    def test_log_probabilities_come_with_their_tokens(self):
        _, reply = self.server.post("/v1/chat/completions", self.chat(logprobs=True, top_logprobs=3, max_tokens=5))
        content = reply["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 5)
        for token in content:
            self.assertLessEqual(token["logprob"], 0)
            self.assertEqual(len(token["top_logprobs"]), 3)
            self.assertAlmostEqual(token["logprob"], token["top_logprobs"][0]["logprob"], places=5)


class BadInputTest(ServerTest):
    """Each gets a clear error, and the server keeps working."""

    arguments = ("--max_input_len", 400)

    def tearDown(self):
        self.assertEqual(self.server.generate(QUESTION)[0], 200)

    def refused(self, path, body, *words, status=400):
        got, _, text = self.server.request("POST", path, body)
        self.assertEqual(got, status, text[:300])
        for word in words:
            self.assertIn(word, text)
        self.assertIn("error", json.loads(text))

    def test_fields_of_a_wrong_type(self):
        self.refused("/v2/models/ensemble/generate", {"text_input": 5, "max_tokens": 5}, "string")
        self.refused("/v2/models/ensemble/generate", {"text_input": "x", "max_tokens": "many"}, "max_tokens")
        self.refused("/v1/completions", {"prompt": "x", "temperature": "hot"}, "temperature")
        self.refused("/v2/models/ensemble/generate", {"text_input": "x", "max_tokens": 5, "unknown": {}}, "unknown")

    def test_empty_prompt(self):
        self.refused("/v1/completions", {"prompt": []}, "prompt")
        self.refused("/v1/chat/completions", {"messages": []}, "messages")

    def test_prompt_that_is_too_long(self):
        self.refused("/v1/completions", {"prompt": "word " * 5000, "max_tokens": 5}, "tokens")
        self.refused("/v1/completions", {"prompt": [5] * 401}, "is 400 tokens", "has 401 tokens", "context_length_exceeded")

    def test_numbers_out_of_range(self):
        self.refused("/v1/completions", '{"prompt": "x", "temperature": NaN}')
        self.refused("/v1/completions", '{"prompt": "x", "temperature": 1e400}')
        self.refused("/v1/completions", {"prompt": "x", "temperature": -1}, "temperature")
        self.refused("/v1/completions", {"prompt": "x", "max_tokens": -5}, "max_tokens")
        self.refused("/v2/models/ensemble/generate", {"text_input": "x", "max_tokens": -5}, "max_tokens")
        self.refused("/v1/completions", {"prompt": "x", "n": 2**31}, "n")
        self.refused("/v1/completions", {"prompt": "x", "logit_bias": {"99999999": 1}}, "logit_bias")

    def test_broken_and_deep_json(self):
        self.refused("/v1/completions", '{"prompt": "x"')
        self.refused("/v1/completions", "[" * 100_000)
        self.refused("/v1/completions", '{"prompt": "\\ud800"}')

    def test_oversized_body(self):
        status, _, _ = self.server.request("POST", "/v1/completions", b'{"prompt": "' + b"x" * (17 << 20) + b'"}')
        self.assertEqual(status, 413)

    def test_unknown_model_and_path(self):
        status, _, text = self.server.request("POST", "/v2/models/none/generate", SEED_BODY)
        self.assertEqual(status, 404)
        self.assertIn("none", text)
        self.assertEqual(self.server.request("GET", "/nothing")[0], 404)
        self.assertEqual(self.server.request("GET", "/v2/models/ensemble/generate")[0], 405)


def exchange(server, data, shutdown=False):
    """Sends raw bytes; returns everything received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(data)
        if shutdown:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def flood(server, head, piece, total):
    """Sends `head`, then `piece` repeatedly until `total` bytes or a reset; returns the status line."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        try:
            connection.sendall(head)
            for _ in range(total // len(piece)):
                connection.sendall(piece)
        except ConnectionError:
            pass
        return connection.recv(65536).split(b"\r\n")[0]


def resident_mebibytes(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10  # the peak


class HostileInputTest(ServerTest):
    """Requests before the key is checked, and framing that a proxy could read differently."""

    arguments = ("--api_key", "open-sesame")
    POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    KEY = b"Authorization: bearer  open-sesame\r\n"

    def test_bodies_without_a_key_cost_nothing(self):
        before = resident_mebibytes(self.server)
        head = self.POST + b"Content-Length: 61865984\r\n\r\n"
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: flood(self.server, head, b" " * (1 << 20), 59 << 20), range(20)))
        self.assertEqual(set(answers), {b"HTTP/1.1 401 Unauthorized"})
        self.assertLess(resident_mebibytes(self.server) - before, 16)
        self.assertTrue(exchange(self.server, head).startswith(b"HTTP/1.1 401 "))  # before any byte of the body
        expecting = self.POST + b"Expect: 100-continue\r\nContent-Length: 61865984\r\n\r\n"
        self.assertTrue(exchange(self.server, expecting).startswith(b"HTTP/1.1 401 "))

    def test_chunk_extensions_and_trailers_are_bounded(self):
        before = resident_mebibytes(self.server)
        chunked = b"Transfer-Encoding: chunked\r\n\r\n"
        for key, status in ((b"", b"401"), (self.KEY, b"431")):
            for start, piece in ((b"1;", b"a" * (1 << 20)), (b"0\r\n", b"a: b\r\n" * 200_000)):
                got = flood(self.server, self.POST + key + chunked + start, piece, 64 << 20)
                self.assertIn(status, got)
        self.assertLess(resident_mebibytes(self.server) - before, 16)

    def test_a_body_never_runs_as_a_second_request(self):
        smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + self.KEY + b"\r\n"
        for encoding in (b"xchunked", b"identity", b"chunked, chunked", b"gzip, chunked", b"chunked\r\nContent-Length: 4"):
            fields = b"Transfer-Encoding: " + encoding + b"\r\n\r\n"
            received = exchange(self.server, self.POST + self.KEY + fields + smuggled)
            self.assertTrue(received.startswith(b"HTTP/1.1 400 "), (encoding, received))
            self.assertEqual(received.count(b"HTTP/1.1 "), 1, encoding)

    def test_hosts_are_counted(self):
        for hosts in (b"", b"Host: a\r\nHost: a\r\n"):
            received = exchange(self.server, b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n")
            self.assertTrue(received.startswith(b"HTTP/1.1 400 "), received)


class HttpClientsTest(ServerTest):
    def test_a_foreign_host_is_refused(self):
        for host, status in (("evil.example", 403), ("localhost:1", 200), ("[::1]", 200), ("127.0.0.9", 200)):
            self.assertEqual(self.server.request("GET", "/v1/models", None, {"Host": host})[0], status, host)

    def test_a_client_that_only_stops_sending_gets_its_answer(self):
        body = json.dumps({"text_input": QUESTION, "max_tokens": 120}).encode()
        head = b"POST /v2/models/ensemble/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        received = exchange(self.server, head % len(body) + body, shutdown=True)
        self.assertEqual(json.loads(received.split(b"\r\n\r\n")[-1])["text_output"], KEY["tandem"])


class LifecycleTest(unittest.TestCase):
    def test_uses_the_memory_that_plan_foretells(self):
        options = ("--max_batch_size", 8, "--max_seq_len", 512)
        planned = [line.rstrip("\n") for line in tandem("plan", *options).stdout.splitlines() if line.startswith("  ")]
        server = Server(*options)
        self.assertEqual(server.stop(), 0)
        self.assertIn("target weights", planned[0])
        served = [line.rstrip("\n") for line in server.lines]
        for line in planned:
            self.assertIn(line, served)

    def test_says_how_to_reach_it(self):
        server = Server()
        self.assertEqual(server.request("GET", "/v2/health/live")[0], 200)
        self.assertEqual(server.request("GET", "/v2/health/ready")[0], 200)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertEqual(server.stop(), 0)
        text = "".join(server.lines)
        for expected in ("curl", "READY", "target weights", "--kv_cache_bytes"):
            self.assertIn(expected, text)

    def test_drains_on_sigterm(self):
        server = Server()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = [
                pool.submit(server.stream, QUESTION, max_tokens=800, end_id=-1, ignore_eos=True) for _ in range(4)
            ]
            time.sleep(0.5)
            self.assertEqual(server.stop(signal.SIGTERM), 0)
            for one in running:
                self.assertTrue("".join(one.result()).startswith(KEY["tandem"][:20]))

    def test_says_what_a_signal_waits_for_and_a_second_one_stops_at_once(self):
        for arguments, expected in (
            ((), "finishing 1 request, up to 600 s; again to stop at once\n"),
            (("--json",), '{"finishing":{"requests":1,"seconds_at_most":600.0}}\n'),
        ):
            server = Server("--shutdown_timeout", 600, *arguments)
            body = {"text_input": QUESTION, "max_tokens": 900, "end_id": -1, "ignore_eos": True, "stream": True}
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
            with contextlib.closing(connection):
                connection.request("POST", "/v2/models/ensemble/generate_stream", json.dumps(body))
                connection.getresponse()  # its head comes with the first token
                server.process.send_signal(signal.SIGINT)
                while expected not in server.lines and server.process.poll() is None:
                    time.sleep(0.01)
                self.assertEqual(server.stop(signal.SIGINT), 6)
            self.assertIn(expected, server.lines)

    def test_a_port_in_use_names_the_next(self):
        server = Server()
        done = tandem("serve", "--port", server.port, check=False)
        self.assertNotEqual(done.returncode, 0)
        found = re.search(rf"Port {server.port} is in use; try --port (\d+)\.", done.stderr)
        self.assertIsNotNone(found, done.stderr)
        # The next that is free: other programs may have those between.
        self.assertGreater(int(found.group(1)), server.port)
        self.assertEqual(server.stop(), 0)

    def test_a_public_address_needs_a_key(self):
        done = tandem("serve", "--host", "0.0.0.0", "--port", 0, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--api_key", done.stderr)

    def test_the_debug_log_has_a_line_for_each_request(self):
        server = Server("--debug", "--api_key", "open-sesame")
        key = {"Authorization": "Bearer open-sesame"}
        chat = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 9}
        try:
            for i, stream in enumerate((False, True)):
                named = {**key, "x-request-id": f"debug-{i}"}
                self.assertEqual(server.request("POST", "/v1/chat/completions", {**chat, "stream": stream}, named)[0], 200)
            named = {**key, "x-request-id": "debug-2"}
            self.assertEqual(server.request("POST", "/v2/models/ensemble/generate", {"text_input": QUESTION, "max_tokens": 9}, named)[0], 200)
            self.assertEqual(server.request("POST", "/v1/chat/completions", {**chat, "max_tokens": -1}, {**key, "x-request-id": "debug-3"})[0], 400)
            self.assertEqual(server.request("POST", "/v1/chat/completions", chat, {"x-request-id": "debug-4"})[0], 401)
        finally:
            self.assertEqual(server.stop(), 0)
        text = "".join(server.lines)
        (one, two, three, four, five) = [[line for line in server.lines if f"request debug-{i}:" in line] for i in range(5)]
        for lines, path in ((one, "/v1/chat/completions"), (two, "/v1/chat/completions"), (three, "/v2/models/ensemble/generate")):
            (line,) = lines
            self.assertRegex(
                line,
                f"POST {path}, status 200 in [0-9.]+ ms, model [a-z_]+, [0-9]+ prompt tokens, 9 output tokens, "
                "[0-9]+ drafts accepted, first token after [0-9.]+ ms",
            )
        self.assertRegex(four[0], "POST /v1/chat/completions, status 400 in [0-9.]+ ms, max_tokens: ")
        self.assertRegex(five[0], "POST /v1/chat/completions, status 401 in [0-9.]+ ms, ")
        self.assertNotIn("open-sesame", text)
        self.assertNotIn("tandem\" mean", text)

    def test_an_api_key_guards_the_routes(self):
        server = Server("--api_key", "open-sesame")
        self.assertEqual(server.request("GET", "/v1/models")[0], 401)
        self.assertEqual(server.request("GET", "/v1/models", None, {"Authorization": "Bearer wrong"})[0], 401)
        self.assertEqual(server.request("GET", "/v1/models", None, {"Authorization": "Bearer open-sesame"})[0], 200)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("open-sesame", "".join(server.lines))

    def test_a_key_file_may_come_from_any_editor(self):
        with tempfile.NamedTemporaryFile("wb", suffix=".txt") as keys:
            keys.write(b"\xef\xbb\xbf# the web front end\r\n\r\nfirst-key\r\n  second-key \r\n")
            keys.flush()
            server = Server("--api_key_file", keys.name)
            for key, status in (("first-key", 200), ("second-key", 200), ("", 401), ("#", 401), ("second-key ", 200)):
                headers = {"Authorization": f"Bearer {key}"}
                self.assertEqual(server.request("GET", "/v1/models", None, headers)[0], status, key)
            self.assertEqual(server.stop(), 0)
            keys.write(b"a key of words\n")
            keys.flush()
            done = tandem("serve", "--api_key_file", keys.name, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("line 5", done.stderr)
            self.assertNotIn("words", done.stderr)

    def test_allowed_hosts_are_names_of_the_server(self):
        server = Server("--allowed_hosts", "chat.example,Other.example")
        for host, status in (("chat.example:80", 200), ("other.example", 200), ("localhost", 200), ("x.example", 403)):
            self.assertEqual(server.request("GET", "/v1/models", None, {"Host": host})[0], status, host)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
