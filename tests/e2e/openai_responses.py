"""OpenAI's own Python client: tools, parsed answers, and the responses API. The embedded pair knows nothing of tools, so what it calls
is the grammar's doing.

    tools/test_python tests/e2e/openai_responses.py build/dev/tandem
"""

import asyncio
import enum
import json
import unittest

import openai
import pydantic

from harness import QUESTION, answer_key
from openai_sdk import MESSAGES, SdkTest


class Place(enum.Enum):
    london = "London"
    paris = "Paris"


class Weather(pydantic.BaseModel):
    """Gets the weather."""

    place: Place
    days: int = pydantic.Field(ge=1, le=9)


class Sense(pydantic.BaseModel):
    word: Place
    known: bool


FLAT = {
    "type": "function",
    "name": "weather",
    "description": "Gets the weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "enum": ["London", "Paris"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["place", "days"],
        "additionalProperties": False,
    },
}
NESTED = {"type": "function", "function": {key: value for key, value in FLAT.items() if key != "type"}}


class Chats(SdkTest):
    def test_parse_makes_objects_of_the_arguments(self):
        reply = self.client().chat.completions.parse(
            model="tandem",
            messages=MESSAGES,
            temperature=0,
            tools=[openai.pydantic_function_tool(Weather)],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        (call,) = reply.choices[0].message.tool_calls
        self.assertEqual(reply.choices[0].finish_reason, "tool_calls")
        self.assertIsInstance(call.function.parsed_arguments, Weather)
        self.assertIn(call.function.parsed_arguments.days, range(1, 10))

    def test_parse_with_tools_and_a_form_of_the_answer(self):
        reply = self.client().chat.completions.parse(
            model="tandem", messages=MESSAGES, temperature=0, tools=[openai.pydantic_function_tool(Weather)], response_format=Sense
        )
        message = reply.choices[0].message
        if message.tool_calls:
            self.assertIsInstance(message.tool_calls[0].function.parsed_arguments, Weather)
        else:
            self.assertIsInstance(message.parsed, Sense)

    def test_the_streams_helper_builds_the_call(self):
        client = self.client()
        options = {
            "model": "tandem",
            "messages": MESSAGES,
            "temperature": 0,
            "tools": [openai.pydantic_function_tool(Weather)],
            "tool_choice": {"type": "function", "function": {"name": "Weather"}},
            "parallel_tool_calls": False,
        }
        kinds = []
        with client.chat.completions.stream(**options) as stream:
            for event in stream:
                kinds.append(event.type)
            final = stream.get_final_completion()
        self.assertIn("tool_calls.function.arguments.delta", kinds)
        self.assertIn("tool_calls.function.arguments.done", kinds)
        (call,) = final.choices[0].message.tool_calls
        self.assertIsInstance(call.function.parsed_arguments, Weather)
        self.assertEqual(final.choices[0].finish_reason, "stop")
        whole = client.chat.completions.create(**options)
        self.assertEqual(whole.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)

    def test_a_refused_schema_names_its_function(self):
        odd = {"type": "function", "function": {"name": "odd", "strict": True, "parameters": {"type": "object", "if": True}}}
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client().chat.completions.create(model="tandem", messages=MESSAGES, tools=[NESTED, odd])
        self.assertEqual(refused.exception.param, "tools[1].function.parameters")
        self.assertIn('"if"', refused.exception.message)


class Responses(SdkTest):
    def create(self, **options):
        options = {"model": "tandem", "input": QUESTION, "temperature": 0, **options}
        return self.client().responses.create(**options)

    def test_an_answer(self):
        reply = self.create()
        self.assertTrue(reply.id.startswith("resp_"))
        self.assertEqual(reply.status, "completed")
        self.assertEqual(reply.output_text, answer_key()["tandem"])
        self.assertEqual(reply.usage.total_tokens, reply.usage.input_tokens + reply.usage.output_tokens)
        self.assertEqual(reply.usage.output_tokens_details.reasoning_tokens, 0)
        chat = self.client().chat.completions.create(model="tandem", messages=MESSAGES, temperature=0)
        self.assertEqual(reply.output_text, chat.choices[0].message.content)
        self.assertEqual(reply.usage.input_tokens, chat.usage.prompt_tokens)

    def test_a_stream_builds_the_same_response(self):
        whole = self.create()
        types, numbers, text = [], [], ""
        with self.client().responses.stream(model="tandem", input=QUESTION, temperature=0) as stream:
            for event in stream:
                types.append(event.type)
                numbers.append(event.sequence_number)
                if event.type == "response.output_text.delta":
                    text += event.delta
                    self.assertEqual(event.snapshot, text)
            final = stream.get_final_response()
        self.assertEqual(text, whole.output_text)
        self.assertEqual(final.output_text, whole.output_text)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        self.assertEqual(numbers, list(range(len(numbers))))
        self.assertEqual(types[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual(
            types[-4:],
            ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"],
        )

    def test_an_answer_that_is_cut_off(self):
        reply = self.create(max_output_tokens=3)
        self.assertEqual(reply.status, "incomplete")
        self.assertEqual(reply.incomplete_details.reason, "max_output_tokens")
        self.assertEqual(reply.usage.output_tokens, 3)
        events = list(self.create(max_output_tokens=3, stream=True))
        self.assertEqual(events[-1].type, "response.incomplete")
        self.assertEqual(events[-1].response.output_text, reply.output_text)

    def test_log_probabilities(self):
        reply = self.create(include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=5)
        (part,) = reply.output[0].content
        self.assertEqual(len(part.logprobs), 5)
        for token in part.logprobs:
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertEqual(bytes(token.bytes).decode(), token.token)
        self.assertEqual("".join(token.token for token in part.logprobs).strip(), part.text.strip())

    def test_parse_makes_an_object_of_the_text(self):
        reply = self.client().responses.parse(model="tandem", input=QUESTION, temperature=0, text_format=Sense)
        self.assertIsInstance(reply.output_parsed, Sense)

    def test_parse_makes_objects_of_the_arguments(self):
        reply = self.client().responses.parse(
            model="tandem",
            input=QUESTION,
            temperature=0,
            tools=[openai.pydantic_function_tool(Weather)],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        (call,) = reply.output
        self.assertEqual(call.type, "function_call")
        self.assertIsInstance(call.parsed_arguments, Weather)

    def test_a_call_and_its_stream(self):
        options = {"tools": [FLAT], "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False}
        (call,) = self.create(**options).output
        self.assertEqual(call.name, "weather")
        self.assertIn(json.loads(call.arguments)["place"], ("London", "Paris"))
        arguments = ""
        with self.client().responses.stream(model="tandem", input=QUESTION, temperature=0, **options) as stream:
            for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    arguments += event.delta
            (streamed,) = stream.get_final_response().output
        self.assertEqual(arguments, call.arguments)
        self.assertEqual(streamed.arguments, call.arguments)
        self.assertTrue(streamed.call_id.startswith("call_"))

    def test_a_conversation_is_sent_back_whole(self):
        first = self.create()
        second = self.create(
            input=[{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": 'What does "ocean" mean?'}],
            instructions="Be brief.",
        )
        self.assertEqual(second.status, "completed")
        self.assertEqual(second.instructions, "Be brief.")
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens + first.usage.output_tokens)

    def test_many_at_once(self):
        async def ask_all():
            async with self.client(openai.AsyncOpenAI) as client:
                asked = [client.responses.create(model="tandem", input=QUESTION, temperature=0) for _ in range(20)]
                return {reply.output_text for reply in await asyncio.gather(*asked)}

        self.assertEqual(asyncio.run(ask_all()), {answer_key()["tandem"]})

    def test_refusals_have_their_fields(self):
        for options, param in [
            ({"previous_response_id": "resp_1"}, "previous_response_id"),
            ({"conversation": "conv_1"}, "conversation"),
            ({"background": True}, "background"),
            ({"store": True}, "store"),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"input": []}, "input"),
            ({"temperature": -1}, "temperature"),
            ({"tools": [FLAT | {"parameters": {"type": "object", "if": True}}]}, "tools[0].parameters"),
            ({"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": {"if": True}}}}, "text.format.schema"),
        ]:
            with self.subTest(param=param), self.assertRaises(openai.BadRequestError) as refused:
                self.create(**options)
            self.assertEqual(refused.exception.param, param)

    def test_what_has_no_effect_is_named(self):
        raw = self.client().responses.with_raw_response.create(
            model="tandem", input=QUESTION, temperature=0, reasoning={"effort": "low"}, text={"verbosity": "low"}
        )
        self.assertEqual(raw.headers["x-tandem-ignored"], "text.verbosity, reasoning")
        self.assertEqual(raw.parse().output_text, answer_key()["tandem"])


if __name__ == "__main__":
    unittest.main()
