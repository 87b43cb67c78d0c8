"""LiteLLM against a real server: its openai/ and hosted_vllm/ providers, and the classes of its errors.

    tools/test_python --with clients tests/clients/litellm_test.py build/dev/tandem
"""

import asyncio
import os
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for a table of prices

import litellm

litellm.suppress_debug_info = True

from harness import QUESTION, ServerTest

MESSAGES = [{"role": "user", "content": QUESTION}]


class LiteLlmTest(ServerTest):
    key = "unused"

    def options(self, provider="openai", **options):
        return {
            "model": f"{provider}/tandem",
            "api_base": f"http://127.0.0.1:{self.server.port}/v1",
            "api_key": self.key,
            "max_retries": 0,
            "timeout": 120,
            **options,
        }

    def complete(self, **options):
        return litellm.completion(**self.options(**{"messages": MESSAGES, "temperature": 0, **options}))


class LiteLlm(LiteLlmTest):
    def test_both_providers_answer_alike(self):
        reply = self.complete()
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)
        text = reply.choices[0].message.content
        self.assertTrue(text)
        self.assertEqual(self.complete(provider="hosted_vllm").choices[0].message.content, text)

    def test_a_stream_is_the_same_text_with_its_usage(self):
        whole = self.complete()
        for provider in ("openai", "hosted_vllm"):
            text, usage = "", None
            for chunk in self.complete(provider=provider, stream=True, stream_options={"include_usage": True}):
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                usage = getattr(chunk, "usage", None) or usage
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_many_at_once(self):
        async def ask_all():
            asked = [litellm.acompletion(**self.options(messages=MESSAGES, temperature=0)) for _ in range(16)]
            return {reply.choices[0].message.content for reply in await asyncio.gather(*asked)}

        self.assertEqual(len(asyncio.run(ask_all())), 1)

    def test_completions(self):
        reply = litellm.text_completion(**self.options("text-completion-openai", prompt=QUESTION, max_tokens=8, temperature=0))
        self.assertTrue(reply.choices[0].text)

    def test_parameters_arrive(self):
        reply = self.complete(n=2, max_tokens=5, logprobs=True, top_logprobs=2, seed=3, temperature=1.0)
        self.assertEqual(len(reply.choices), 2)
        self.assertEqual(len(reply.choices[0].logprobs.content[0].top_logprobs), 2)
        schema = {"name": "a", "strict": True, "schema": {"enum": ["noun", "verb"]}}
        chosen = self.complete(response_format={"type": "json_schema", "json_schema": schema}, max_tokens=9)
        self.assertIn(chosen.choices[0].message.content, ('"noun"', '"verb"'))

    def test_errors_have_their_classes(self):
        with self.assertRaises(litellm.BadRequestError) as refused:
            self.complete(temperature=-1)
        self.assertIn("temperature", str(refused.exception))
        with self.assertRaises(litellm.ContextWindowExceededError):
            self.complete(messages=[{"role": "user", "content": "word " * 5000}])
        with self.assertRaises(litellm.NotFoundError):
            self.complete(model="openai/other")

    def test_embeddings_are_refused_clearly(self):
        with self.assertRaises(litellm.NotFoundError) as refused:
            litellm.embedding(**self.options(input=["tandem"]))
        self.assertIn("embeddings", str(refused.exception))


class Busy(LiteLlmTest):
    arguments = ("--max_batch_size", "1", "--max_queue_size", "1")

    def test_a_full_queue_is_asked_again(self):
        async def ask_all():
            asked = [
                litellm.acompletion(**self.options(messages=MESSAGES, max_tokens=30, max_retries=20)) for _ in range(8)
            ]
            return await asyncio.gather(*asked)

        self.assertEqual(len(asyncio.run(ask_all())), 8)


class WithKey(LiteLlmTest):
    arguments = ("--api_key", "sk-secret")
    key = "sk-secret"

    def test_a_wrong_key_is_refused_and_the_right_one_is_not(self):
        self.assertTrue(self.complete(max_tokens=3).choices[0].message.content)
        with self.assertRaises(litellm.AuthenticationError):
            self.complete(api_key="wrong")


if __name__ == "__main__":
    unittest.main()
