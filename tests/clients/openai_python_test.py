"""OpenAI's own Python client, beyond tests/e2e/openai_sdk.py: asynchronous use, retries, parsing, and TLS.

    tools/test_python tests/clients/openai_python_test.py build/dev/tandem
"""

import asyncio
import ssl
import sys
import unittest
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import openai
from pydantic import BaseModel, ConfigDict, Field

from harness import QUESTION, REPOSITORY, Server, ServerTest

MESSAGES = [{"role": "user", "content": QUESTION}]


class Answer(BaseModel):
    # A model as small as the embedded one may write line ends until its tokens are used up.
    model_config = ConfigDict(json_schema_extra={"x-guidance": {"whitespace_flexible": False}})

    kind: Literal["noun", "verb"]
    senses: int = Field(ge=1, le=9)
    known: bool


class SdkTest(ServerTest):
    def client(self, kind=openai.OpenAI, **options):
        return kind(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="unused", timeout=120, **options)

    def responses(self, status):
        """How many requests to the OpenAI routes have got this status."""
        _, _, text = self.server.request("GET", "/metrics")
        wanted = f'tandem_http_responses_total{{front_end="openai",status="{status}"}} '
        return sum(float(line[len(wanted) :]) for line in text.splitlines() if line.startswith(wanted))


class Async(SdkTest):
    def test_streams_side_by_side_are_each_the_whole_text(self):
        async def read(client):
            stream = await client.chat.completions.create(model="tandem", messages=MESSAGES, temperature=0, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        async def read_all():
            async with self.client(openai.AsyncOpenAI) as client:
                return await asyncio.gather(*(read(client) for _ in range(24)))

        whole = self.client().chat.completions.create(model="tandem", messages=MESSAGES, temperature=0)
        self.assertEqual(set(asyncio.run(read_all())), {whole.choices[0].message.content})

    def test_a_task_that_is_cancelled_frees_its_request(self):
        async def cancel():
            async with self.client(openai.AsyncOpenAI) as client:
                task = asyncio.create_task(
                    client.completions.create(model="tandem", prompt=QUESTION, max_tokens=900, extra_body={"ignore_eos": True})
                )
                await asyncio.sleep(0.05)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                return await client.completions.create(model="tandem", prompt="x", max_tokens=1)

        self.assertEqual(asyncio.run(cancel()).usage.completion_tokens, 1)


class Choices(SdkTest):
    def test_streamed_choices_and_log_probabilities_are_those_of_the_whole(self):
        options = {"model": "tandem", "messages": MESSAGES, "n": 3, "seed": 5, "logprobs": True, "top_logprobs": 2}
        whole = self.client().chat.completions.create(**options, max_completion_tokens=10)
        texts, logprobs = [""] * 3, [[], [], []]
        for chunk in self.client().chat.completions.create(**options, max_completion_tokens=10, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.logprobs:
                    logprobs[choice.index] += choice.logprobs.content
        for choice in whole.choices:
            self.assertEqual(texts[choice.index], choice.message.content)
            told = [(token.token, token.logprob) for token in logprobs[choice.index]]
            self.assertEqual(told, [(token.token, token.logprob) for token in choice.logprobs.content])


class Parse(SdkTest):
    def test_a_pydantic_class_is_what_comes_back(self):
        reply = self.client().chat.completions.parse(model="tandem", messages=MESSAGES, response_format=Answer)
        self.assertIsInstance(reply.choices[0].message.parsed, Answer)
        self.assertIsNone(reply.choices[0].message.refusal)

    def test_a_stream_is_parsed_at_its_end(self):
        with self.client().chat.completions.stream(model="tandem", messages=MESSAGES, response_format=Answer) as stream:
            for _ in stream:
                pass
            self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Answer)

    def test_an_answer_that_is_cut_is_told(self):
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client().chat.completions.parse(model="tandem", messages=MESSAGES, response_format=Answer, max_tokens=3)


class Busy(SdkTest):
    arguments = ("--max_batch_size", "1", "--max_queue_size", "1")

    def test_a_full_queue_is_asked_again_until_it_has_room(self):
        async def ask_all():
            async with self.client(openai.AsyncOpenAI, max_retries=30) as client:
                asked = [client.completions.create(model="tandem", prompt=QUESTION, max_tokens=100) for _ in range(10)]
                return await asyncio.gather(*asked)

        self.assertEqual(len(asyncio.run(ask_all())), 10)
        self.assertGreater(self.responses(429), 0)

    def test_without_retries_the_error_says_when_to_ask_again(self):
        async def ask_all():
            async with self.client(openai.AsyncOpenAI, max_retries=0) as client:
                asked = [client.completions.create(model="tandem", prompt=QUESTION, max_tokens=100) for _ in range(10)]
                return await asyncio.gather(*asked, return_exceptions=True)

        refused = [reply for reply in asyncio.run(ask_all()) if isinstance(reply, openai.RateLimitError)]
        self.assertTrue(refused)
        for error in refused:
            self.assertEqual(error.code, "rate_limit_exceeded")
            self.assertGreater(int(error.response.headers["retry-after"]), 0)


class Tls(unittest.TestCase):
    """The certificate that only tests use; clients are told to trust it."""

    def test_the_client_speaks_https(self):
        folder = REPOSITORY / "tests/data/tls"
        server = Server("--tls_cert_file", folder / "certificate.pem", "--tls_key_file", folder / "key.pem")
        try:
            trusted = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
            client = openai.OpenAI(
                base_url=f"https://localhost:{server.port}/v1",
                api_key="unused",
                max_retries=0,
                http_client=openai.DefaultHttpxClient(verify=trusted),
            )
            whole = client.chat.completions.create(model="tandem", messages=MESSAGES, temperature=0)
            stream = client.chat.completions.create(model="tandem", messages=MESSAGES, temperature=0, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            self.assertEqual(text, whole.choices[0].message.content)
            with self.assertRaises(openai.APIConnectionError):
                openai.OpenAI(base_url=f"https://localhost:{server.port}/v1", api_key="x", max_retries=0).models.list()
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
