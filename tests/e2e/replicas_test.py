"""`--data_parallel_size`: the embedded pair as two replicas on the CPU answers as one engine does, through one door."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import signal
import time
import unittest

from harness import QUESTION, REPOSITORY, Server, ServerTest, answer_key, tandem

KEY = answer_key()
WORDS = list(KEY)[::400]
TARGET = REPOSITORY / "models/dictionary/target"
REPLICAS = ("--device", "cpu", "--data_parallel_size", "2")
LONG = {"text_input": QUESTION, "max_tokens": 900, "end_id": -1, "ignore_eos": True, "stream": True}
BLOCK = 32  # tokens of a block of the cache


def running(server):
    """Sequences that run on each replica."""
    _, _, text = server.request("GET", "/metrics")
    return [int(count) for count in re.findall(r"^tandem_replica_requests_running{.*} (\d+)$", text, re.MULTILINE)]


def wait_for(condition, what):
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within 30 s")
        time.sleep(0.01)


class ReplicasTest(ServerTest):
    arguments = (*REPLICAS, "--kv_event_buffer", "4096")

    def stored(self):
        """The blocks that were stored since the last call: (replica, tokens) of each."""
        blocks = []
        while batch := self.server.post("/kv_cache_events", "")[1]:
            for event in batch:
                if event["data"]["type"] == "stored":
                    tokens = [token["token_id"] for token in event["data"]["blocks"][0]["tokens"]]
                    blocks.append((event["attention_dp_rank"], tokens))
        return blocks

    def test_answers_are_those_of_one_engine(self):
        def ask(numbered):
            number, word = numbered
            question = f'What does "{word}" mean?'
            if number % 2 == 0:
                return "".join(self.server.stream(question))
            status, answer = self.server.generate(question)
            self.assertEqual(status, 200, answer)
            return answer["text_output"]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for word, answer in zip(WORDS, pool.map(ask, enumerate(WORDS))):
                self.assertIn(KEY[word], answer)
        body = {"prompt": QUESTION, "max_tokens": 20, "temperature": 1.5, "seed": 5, "n": 3}
        status, drawn = self.server.post("/v1/completions", body)
        self.assertEqual(status, 200, drawn)
        one = Server("--device", "cpu")
        try:
            expected = one.post("/v1/completions", body)[1]
        finally:
            one.stop()
        self.assertEqual([c["text"] for c in drawn["choices"]], [c["text"] for c in expected["choices"]])

    def test_streams_from_both_at_once_and_each_hears_of_its_clients_that_leave(self):
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                connection = stack.enter_context(
                    contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120))
                )
                connection.request("POST", "/v2/models/ensemble/generate_stream", json.dumps(LONG))
                response = connection.getresponse()
                self.assertEqual(response.status, 200)
                self.assertTrue(response.readline().startswith(b"data:"))
            wait_for(lambda: running(self.server) == [1, 1], "one runs on each replica")
        wait_for(lambda: running(self.server) == [0, 0], "both are cancelled")

    def test_a_conversation_stays_where_its_beginning_is_cached_and_another_begins_elsewhere(self):
        self.stored()
        replicas = []
        for words in (WORDS[:6], WORDS[6:12]):
            talk, seen = "", set()
            for turn, word in enumerate(words):
                talk += f'What does "{word}" mean? '
                before = self.server.metric("tandem_prefix_hit_tokens_total")
                status, answer = self.server.post("/v1/completions", {"prompt": talk, "max_tokens": 40, "seed": 1})
                self.assertEqual(status, 200, answer)
                talk += answer["choices"][0]["text"] + " "
                blocks = self.stored()
                seen |= {replica for replica, _ in blocks}
                prompt = answer["usage"]["prompt_tokens"]
                if turn > 2:
                    found = self.server.metric("tandem_prefix_hit_tokens_total") - before
                    self.assertGreater(found, prompt - 3 * BLOCK)
            self.assertEqual(len(seen), 1, "the blocks of a conversation are on one replica")
            replicas += seen
        self.assertEqual(sorted(replicas), [0, 1])

    def test_the_memory_plan_names_the_replicas_and_what_they_share(self):
        said = "".join(self.server.lines)
        self.assertIn("once for all 2 replicas", said)
        self.assertIn("2 replicas (--data_parallel_size):", said)
        self.assertIn("wait for a turn at each replica", said)


class OtherReplicasTest(unittest.TestCase):
    def test_drains_on_sigterm(self):
        server = Server(*REPLICAS)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(server.stream, QUESTION, max_tokens=900, end_id=-1, ignore_eos=True) for _ in range(4)]
            wait_for(lambda: running(server) == [2, 2], "two run on each replica")
            self.assertEqual(server.stop(signal.SIGTERM), 0)
            for stream in streams:
                self.assertTrue("".join(stream.result()).startswith(KEY["tandem"][:20]))

    def test_a_full_replica_passes_requests_on(self):
        server = Server(*REPLICAS, "--max_batch_size", "1", "--max_queue_size", "1", "--no_draft")
        try:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                body = {key: value for key, value in LONG.items() if key != "stream"}
                asked = [pool.submit(server.post, "/v2/models/ensemble/generate", body) for _ in range(8)]
                statuses = sorted(one.result()[0] for one in asked)
            self.assertGreaterEqual(statuses.count(200), 2, "each replica has a place")
            self.assertEqual(set(statuses[statuses.count(200) :]), {503})  # as Triton
        finally:
            self.assertEqual(server.stop(), 0)

    def test_replicas_of_ranks_answer(self):
        server = Server(*REPLICAS, "--tensor_parallel_size", "2")
        try:
            for word in WORDS[:4]:
                status, answer = server.generate(f'What does "{word}" mean?')
                self.assertEqual(status, 200, answer)
                self.assertIn(KEY[word], answer["text_output"])
        finally:
            self.assertEqual(server.stop(), 0)

    def test_other_verbs_use_all_replicas_or_refuse_them_by_name(self):
        done = tandem("eval", "dictionary", "--sample", "200", "--min_recall", "1", *REPLICAS)
        self.assertIn("100.00 % exact", done.stdout)
        done = tandem("run", "--input_text", QUESTION, "--max_output_len", "100", *REPLICAS)
        self.assertIn(KEY["tandem"], done.stdout)
        done = tandem("plan", "--json", *REPLICAS)
        self.assertEqual(len(json.loads(done.stdout)["replicas"]), 2)
        load = ("--max_batch_size", "4", "--input_len", "16", "--output_len", "8", "--num_requests", "16")
        done = tandem("bench", "throughput", "--json", *load, *REPLICAS)
        self.assertEqual(json.loads(done.stdout)["concurrency"], 8)
        for kind in ("ttft", "speculative"):
            done = tandem("bench", kind, "--data_parallel_size", "2", check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("--data_parallel_size: bench " + kind, done.stderr)
        done = tandem("plan", "--data_parallel_size", "0", check=False)
        self.assertIn("--data_parallel_size", done.stderr)


if __name__ == "__main__":
    unittest.main()
