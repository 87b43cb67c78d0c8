"""OpenAI's own Python client against a real server: what its users rely on.

    tools/test_python tests/e2e/openai_sdk.py build/dev/tandem
"""

import asyncio
import unittest

import openai

from harness import QUESTION, ServerTest

MESSAGES = [{"role": "user", "content": QUESTION}]


class SdkTest(ServerTest):
    key = "unused"

    def client(self, kind=openai.OpenAI, **options):
        return kind(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key=self.key, timeout=120, **options)


class Sdk(SdkTest):
    def test_a_chat_and_its_stream_agree(self):
        client = self.client()
        whole = client.chat.completions.create(model="tandem", messages=MESSAGES, temperature=0)
        self.assertTrue(whole.id.startswith("chatcmpl-"))
        self.assertEqual(whole.object, "chat.completion")
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        text, finish, usage = "", None, None
        stream = client.chat.completions.create(
            model="tandem", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        for chunk in stream:
            self.assertEqual(chunk.object, "chat.completion.chunk")
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
            if not chunk.choices:
                usage = chunk.usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(finish, whole.choices[0].finish_reason)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_choices_and_log_probabilities(self):
        reply = self.client().chat.completions.create(
            model="tandem", messages=MESSAGES, n=3, seed=5, logprobs=True, top_logprobs=4, max_completion_tokens=6
        )
        self.assertEqual([choice.index for choice in reply.choices], [0, 1, 2])
        for choice in reply.choices:
            for token in choice.logprobs.content:
                self.assertEqual(len(token.top_logprobs), 4)
                self.assertLessEqual(token.logprob, token.top_logprobs[0].logprob)
                self.assertEqual(bytes(token.bytes).decode(errors="replace"), token.token)

    def test_completions_with_echo_and_token_ids(self):
        client = self.client()
        reply = client.completions.create(model="tandem", prompt=QUESTION, max_tokens=4, echo=True, logprobs=2)
        choice = reply.choices[0]
        self.assertTrue(reply.id.startswith("cmpl-"))
        self.assertTrue(choice.text.startswith(QUESTION))
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual(len(choice.logprobs.tokens), reply.usage.total_tokens)
        batch = client.completions.create(model="tandem", prompt=[[5, 6, 7], [8, 9]], max_tokens=1, best_of=3, n=2)
        self.assertEqual(len(batch.choices), 4)

    def test_models(self):
        client = self.client()
        self.assertEqual([model.id for model in client.models.list()], ["tandem"])
        self.assertEqual(client.models.retrieve("tandem").object, "model")

    def test_errors_have_their_classes_and_fields(self):
        client = self.client(max_retries=0)
        with self.assertRaises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="tandem", messages=MESSAGES, temperature=-1)
        self.assertEqual(refused.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="other", messages=MESSAGES)
        self.assertEqual(unknown.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as too_long:
            client.completions.create(model="tandem", prompt="word " * 5000)
        self.assertEqual(too_long.exception.code, "context_length_exceeded")

    def test_request_ids_and_unknown_fields_are_told(self):
        raw = self.client().completions.with_raw_response.create(
            model="tandem", prompt="x", max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}, extra_body={"tempperature": 1}
        )
        self.assertEqual(raw.headers["x-request-id"], "mine-1")
        self.assertEqual(raw.headers["x-tandem-ignored"], "tempperature")
        self.assertEqual(raw.parse().id, "cmpl-mine-1")
        known = self.client().chat.completions.with_raw_response.create(
            model="tandem", messages=MESSAGES, max_tokens=1, user="u", metadata={"a": "b"}, store=False, service_tier="auto"
        )
        self.assertNotIn("x-tandem-ignored", known.headers)

    def test_thirty_at_once(self):
        async def ask_all():
            async with self.client(openai.AsyncOpenAI) as client:
                asked = [
                    client.chat.completions.create(model="tandem", messages=MESSAGES, temperature=0) for _ in range(30)
                ]
                return {reply.choices[0].message.content for reply in await asyncio.gather(*asked)}

        self.assertEqual(len(asyncio.run(ask_all())), 1)

    def test_a_stream_that_is_closed_frees_its_request(self):
        stream = self.client().completions.create(
            model="tandem", prompt=QUESTION, max_tokens=200, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
        reply = self.client().completions.create(model="tandem", prompt="x", max_tokens=1)
        self.assertEqual(reply.usage.completion_tokens, 1)


class Busy(SdkTest):
    arguments = ("--max_batch_size", "1", "--max_queue_size", "1")

    def test_a_full_queue_is_asked_again(self):
        async def ask_all():
            async with self.client(openai.AsyncOpenAI, max_retries=20) as client:
                asked = [client.completions.create(model="tandem", prompt=QUESTION, max_tokens=4) for _ in range(6)]
                return await asyncio.gather(*asked)

        self.assertEqual(len(asyncio.run(ask_all())), 6)


class WithKey(SdkTest):
    arguments = ("--api_key", "sk-secret")
    key = "sk-secret"

    def test_a_wrong_key_is_refused_and_the_right_one_is_not(self):
        self.assertEqual(len(list(self.client().models.list())), 1)
        with self.assertRaises(openai.AuthenticationError):
            self.client().with_options(api_key="wrong").models.list()


if __name__ == "__main__":
    unittest.main()
