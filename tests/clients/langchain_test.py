"""LangChain's OpenAI integration against a real server: what its users rely on.

    tools/test_python --with clients tests/clients/langchain_test.py build/dev/tandem
"""

import asyncio
import sys
import unittest
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import openai
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

from harness import QUESTION, ServerTest, answer_key

WORDS = list(answer_key())[::4000]


class Answer(BaseModel):
    # A model as small as the embedded one may write line ends until its tokens are used up.
    model_config = ConfigDict(json_schema_extra={"x-guidance": {"whitespace_flexible": False}})

    kind: Literal["noun", "verb"]
    senses: int = Field(ge=1, le=9)
    known: bool


class LangChain(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # LangChain keeps its connections, which belong to a loop.
        cls.loop = cls.enterClassContext(asyncio.Runner())

    def model(self, kind=ChatOpenAI, **options):
        return kind(
            base_url=f"http://127.0.0.1:{self.server.port}/v1",
            api_key="unused",
            model="tandem",
            **{"temperature": 0, "timeout": 120, "max_retries": 0, **options},
        )

    def test_invoke_tells_tokens_and_the_end(self):
        reply = self.model().invoke(QUESTION)
        self.assertTrue(reply.content)
        self.assertEqual(reply.response_metadata["finish_reason"], "stop")
        usage = reply.usage_metadata
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])

    def test_a_stream_is_the_same_text_with_its_usage(self):
        whole = self.model().invoke(QUESTION)
        chunks = list(self.model(stream_usage=True).stream(QUESTION))
        self.assertGreater(len(chunks), 3)
        total = chunks[0]
        for chunk in chunks[1:]:
            total += chunk
        self.assertEqual(total.content, whole.content)
        self.assertEqual(total.usage_metadata["output_tokens"], whole.usage_metadata["output_tokens"])

    def test_structured_output_is_an_object_of_the_class(self):
        structured = self.model(max_tokens=60).with_structured_output(Answer, method="json_schema", include_raw=True)
        for word in WORDS:
            reply = structured.invoke(f'What does "{word}" mean?')
            self.assertIsNone(reply["parsing_error"])
            self.assertIsInstance(reply["parsed"], Answer)
            self.assertTrue(1 <= reply["parsed"].senses <= 9)

    def test_a_batch_keeps_its_order(self):
        questions = [f'What does "{word}" mean?' for word in WORDS]
        alone = [self.model().invoke(question).content for question in questions]
        self.assertEqual([reply.content for reply in self.model().batch(questions)], alone)
        together = self.loop.run(self.model().abatch(questions))
        self.assertEqual([reply.content for reply in together], alone)

    def test_async_streams_run_side_by_side(self):
        async def read(model):
            return "".join([chunk.content async for chunk in model.astream(QUESTION)])

        async def read_all():
            model = self.model()
            return await asyncio.gather(*(read(model) for _ in range(8)))

        self.assertEqual(set(self.loop.run(read_all())), {self.model().invoke(QUESTION).content})

    def test_chains_and_system_messages(self):
        prompt = ChatPromptTemplate.from_messages([("system", "You define words."), ("human", 'What does "{word}" mean?')])
        reply = (prompt | self.model(max_tokens=8)).invoke({"word": "tandem"})
        self.assertTrue(reply.content)

    def test_log_probabilities_and_stop(self):
        reply = self.model(max_tokens=6).bind(logprobs=True, top_logprobs=3).invoke(QUESTION)
        tokens = reply.response_metadata["logprobs"]["content"]
        self.assertEqual("".join(token["token"] for token in tokens), reply.content)
        self.assertTrue(all(len(token["top_logprobs"]) == 3 for token in tokens))
        stopped = self.model().invoke(QUESTION, stop=[":"])
        self.assertNotIn(":", stopped.content)

    def test_completions(self):
        model = self.model(OpenAI, max_tokens=12)
        whole = model.invoke(QUESTION)
        self.assertTrue(whole)
        self.assertEqual("".join(model.stream(QUESTION)), whole)
        self.assertEqual(model.batch([QUESTION, QUESTION]), [whole, whole])

    def test_errors_keep_their_class_and_field(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            self.model(temperature=-1).invoke(QUESTION)
        self.assertEqual(refused.exception.param, "temperature")


if __name__ == "__main__":
    unittest.main()
