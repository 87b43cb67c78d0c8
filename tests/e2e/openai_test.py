"""The OpenAI routes as lm-eval and other clients use them, against a real server. Standard library only.

    python3 tests/e2e/openai_test.py build/dev/tandem
"""

import json
import unittest

from harness import QUESTION, ServerTest, answer_key


def lm_eval_body(prompts, **fields):
    """The body that lm-eval's local-completions sends to score prompts of token ids."""
    return {
        "model": "tandem",
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
        **fields,
    }


def lm_eval_score(choice, context_length):
    """(log-probability, is greedy) of the tokens after the context, by lm-eval's rules: the last token is the new one."""
    logprobs = choice["logprobs"]
    total = sum(logprobs["token_logprobs"][context_length:-1])
    pairs = zip(logprobs["token_logprobs"][context_length:-1], logprobs["top_logprobs"][context_length:-1])
    return total, all(own == max(top.values()) for own, top in pairs)


class LmEval(ServerTest):
    arguments = ("--max_queue_size", "256")

    def tokenize(self, text, **fields):
        status, reply = self.server.post("/tokenize", {"model": "tandem", "prompt": text, **fields})
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply["count"], len(reply["tokens"]))
        return reply["tokens"]

    def complete(self, body):
        status, reply = self.server.post("/v1/completions", body)
        self.assertEqual(status, 200, reply)
        return reply

    def drawn(self):
        """The model's own greedy answer: (prompt tokens, answer tokens, their log-probabilities)."""
        prompt = self.tokenize(QUESTION)
        reply = self.complete({"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 1})
        choice = reply["choices"][0]
        return prompt, self.tokenize(choice["text"], add_special_tokens=False), choice["logprobs"]["token_logprobs"]

    def test_scores_the_models_own_answer_as_it_was_drawn(self):
        prompt, answer, logprobs = self.drawn()
        self.assertEqual(len(answer), len(logprobs))
        choice = self.complete(lm_eval_body([prompt + answer]))["choices"][0]
        self.assertEqual(len(choice["logprobs"]["token_logprobs"]), len(prompt) + len(answer) + 1)
        self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
        self.assertIsNone(choice["logprobs"]["top_logprobs"][0])
        total, is_greedy = lm_eval_score(choice, len(prompt))
        self.assertTrue(is_greedy)
        self.assertAlmostEqual(total, sum(logprobs), places=3)

    def test_another_answer_is_less_likely_and_not_greedy(self):
        prompt, answer, _ = self.drawn()
        other = answer[::-1]
        best, worse = self.complete(lm_eval_body([prompt + answer, prompt + other]))["choices"]
        self.assertLess(lm_eval_score(worse, len(prompt))[0], lm_eval_score(best, len(prompt))[0])
        self.assertFalse(lm_eval_score(worse, len(prompt))[1])

    def test_a_prompt_in_the_cache_is_scored_alike(self):
        words = list(answer_key())[:8]
        prompts = [self.tokenize(f'What does "{word}" mean?') for word in words]
        together = self.complete(lm_eval_body(prompts))
        self.assertEqual([choice["index"] for choice in together["choices"]], list(range(8)))
        self.assertEqual(together["usage"]["prompt_tokens"], sum(map(len, prompts)))
        for prompt, choice in zip(prompts, together["choices"]):
            self.complete({"prompt": prompt, "max_tokens": 1})  # now the prompt is in the cache
            alone = self.complete(lm_eval_body([prompt], max_tokens=0))["choices"][0]["logprobs"]
            for list_of_tokens in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                self.assertEqual(alone[list_of_tokens], choice["logprobs"][list_of_tokens][:-1])

    def test_offsets_cut_the_text_at_its_tokens(self):
        reply = self.complete({"prompt": QUESTION, "max_tokens": 8, "logprobs": 0, "echo": True})
        choice = reply["choices"][0]
        self.assertTrue(choice["text"].startswith(QUESTION))
        offsets = choice["logprobs"]["text_offset"]
        self.assertEqual(offsets, sorted(offsets))
        self.assertLessEqual(offsets[-1], len(choice["text"]))
        first_new = reply["usage"]["prompt_tokens"]
        self.assertEqual(offsets[first_new], len(QUESTION))

    def test_an_echo_streams(self):
        events = self.server.events(
            "/v1/completions", {"prompt": QUESTION, "max_tokens": 8, "logprobs": 0, "echo": True, "n": 2, "stream": True}
        )
        self.assertEqual(events.pop(), "[DONE]")
        texts, tokens = {}, {}
        for choice in (choice for event in events for choice in json.loads(event)["choices"]):
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            if choice["logprobs"]:
                tokens.setdefault(choice["index"], []).extend(choice["logprobs"]["token_logprobs"])
        for index in range(2):
            self.assertTrue(texts[index].startswith(QUESTION))
            self.assertIsNone(tokens[index][0])

    def test_generates_until(self):
        reply = self.complete(
            {"model": "tandem", "prompt": [QUESTION], "max_tokens": 120, "temperature": 0, "stop": ["\n\n", ".", "Q:", "</s>", "A:"], "seed": 1234}
        )
        self.assertNotIn(".", reply["choices"][0]["text"])

    def test_the_tokenizer_turns_back(self):
        tokens = self.tokenize(QUESTION, add_special_tokens=False)
        _, reply = self.server.post("/detokenize", {"model": "tandem", "tokens": tokens})
        self.assertEqual(reply["prompt"], QUESTION)
        status, _, text = self.server.request("GET", "/tokenizer_info")
        self.assertEqual(status, 200)
        self.assertIsInstance(json.loads(text)["eos_token"], str)

    def test_a_chat_has_as_many_tokens_as_it_is_billed(self):
        messages = [{"role": "user", "content": QUESTION}]
        _, counted = self.server.post("/tokenize", {"messages": messages})
        _, reply = self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        self.assertEqual(counted["count"], reply["usage"]["prompt_tokens"])


class Choices(ServerTest):
    def post(self, **fields):
        status, reply = self.server.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 16, **fields})
        self.assertEqual(status, 200, reply)
        return reply

    def test_best_of_returns_the_likeliest_of_what_n_returns(self):
        drawn = {"seed": 7, "temperature": 1.5, "logprobs": 0}

        def mean(choice):
            logprobs = choice["logprobs"]["token_logprobs"]
            return sum(logprobs) / len(logprobs) if logprobs else float("-inf")

        every = sorted(self.post(n=6, **drawn)["choices"], key=mean, reverse=True)
        best = self.post(n=2, best_of=6, **drawn)
        self.assertEqual([choice["text"] for choice in best["choices"]], [choice["text"] for choice in every[:2]])
        self.assertEqual([choice["index"] for choice in best["choices"]], [0, 1])

    def test_a_stop_token_id_ends_the_answer_before_it(self):
        whole = self.post(temperature=0, logprobs=0)["choices"][0]["text"]
        _, reply = self.server.post("/tokenize", {"prompt": whole, "add_special_tokens": False})
        stop = reply["tokens"][5]
        first = reply["tokens"].index(stop)
        ended = self.post(temperature=0, logprobs=0, stop_token_ids=[stop], ignore_eos=True)["choices"][0]
        self.assertEqual(ended["finish_reason"], "stop")
        self.assertEqual(len(ended["logprobs"]["tokens"]), first)
        self.assertTrue(whole.startswith(ended["text"]))


# Each must be refused by its field, and harm nothing.
HOSTILE = [
    ("n", 2**31),
    ("n", -1),
    ("n", 0),
    ("n", 1.5),
    ("n", "2"),
    ("best_of", 2**63),
    ("best_of", -5),
    ("best_of", 1000),
    ("max_tokens", -1),
    ("max_tokens", 0),
    ("max_tokens", 2**40),
    ("max_completion_tokens", -1),
    ("min_tokens", -1),
    ("min_tokens", 10**9),
    ("stop", ["x"] * 100_000),
    ("stop", ["x" * 100_000]),
    ("stop", [1]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [2**31]),
    ("stop_token_ids", [10**6]),
    ("stop_token_ids", [5] * 100_000),
    ("stop_token_ids", "5"),
    ("logit_bias", {"99999999": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"5": 1000}),
    ("logit_bias", {str(i): 1 for i in range(5000)}),
    ("logit_bias", [1]),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", True),
    ("prompt_logprobs", -2),
    ("prompt_logprobs", 1000),
    ("echo", "yes"),
    ("temperature", -1),
    ("temperature", "hot"),
    ("temperature", 1e300),
    ("top_p", 2),
    ("top_p", -0.1),
    ("top_k", -2),
    ("min_p", 1.5),
    ("presence_penalty", 1e9),
    ("frequency_penalty", -1e9),
    ("repetition_penalty", 0),
    ("seed", 1.5),
    ("seed", "a"),
    ("priority", "high"),
    ("priority", 2**64),
    ("stream", 1),
    ("stream_options", {}),
    ("store", True),
    ("suffix", "x"),
    ("prompt", []),
    ("prompt", ""),
    ("prompt", [[]]),
    ("prompt", [-1]),
    ("prompt", [2**31]),
    ("prompt", [10**6]),
    ("prompt", ["x"] * 1000),
    ("prompt", [["x"]]),
    ("prompt", {"text": "x"}),
    ("prompt", None),
    ("bad_words", ["x"] * 100_000),
]


class HostileParameters(ServerTest):
    def test_each_is_refused_by_its_name(self):
        for name, value in HOSTILE:
            with self.subTest(field=name, value=str(value)[:60]):
                status, reply = self.server.post("/v1/completions", {"prompt": "x", name: value})
                self.assertEqual(status, 400, reply)
                self.assertEqual(reply["error"]["param"], name, reply)
                self.assertEqual(reply["error"]["type"], "invalid_request_error")
        status, reply = self.server.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 4})
        self.assertEqual(status, 200, reply)


# Bodies that are no good JSON, or none that a request may be made of.
HOSTILE_JSON = {
    "an array 101 deep": '{"prompt": ' + "[" * 101 + "]" * 101 + "}",
    "an array 250,000 deep": "[" * 250_000 + "]" * 250_000,
    "half of a surrogate pair": '{"prompt": "\\ud800"}',
    "halves in the wrong order": '{"prompt": "\\udc00\\ud800"}',
    "bytes that are no UTF-8": b'{"prompt": "\xff\xfe"}',
    "a name twice": '{"prompt": "x", "prompt": "y"}',
    "a number beyond all": '{"prompt": "x", "temperature": 1e400}',
    "not a number": '{"prompt": "x", "temperature": NaN}',
    "an open string": '{"prompt": "x',
    "nothing": "",
    "a comma too many": '{"prompt": "x",}',
    "a second value": '{"prompt": "x"} {}',
}


class HostileJson(ServerTest):
    def test_each_is_refused(self):
        for route in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"):
            for name, body in HOSTILE_JSON.items():
                with self.subTest(route=route, body=name):
                    status, _, text = self.server.request("POST", route, body)
                    self.assertEqual(status, 400, text)
                    self.assertIn("error", json.loads(text))
        status, _, _ = self.server.request("POST", "/tokenize", b'{"prompt": "' + b"x" * (64 << 20) + b'"}')
        self.assertEqual(status, 413)
        self.assertEqual(self.server.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 4})[0], 200)


if __name__ == "__main__":
    unittest.main()
