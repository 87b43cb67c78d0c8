"""Tool calls that follow a grammar, with the embedded pair: it knows nothing of tools, so what it calls is the grammar's doing.
The cases of llgtrt's own tests are here in our words. Standard library only.

    python3 tests/e2e/tools_test.py build/dev/tandem
"""

import json
import unittest

from harness import QUESTION, ServerTest, answer_key

PLACES = ["London, UK", "Paris, France"]
WEATHER = {
    "type": "object",
    "properties": {"location": {"type": "string", "enum": PLACES}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["location", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["celsius", "fahrenheit"]}},
}
STOCK = {
    "type": "object",
    "properties": {"ticker": {"type": "string", "pattern": "^[A-Z]{1,4}$"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["ticker", "days"],
    "additionalProperties": False,
}


def function(name, parameters=None, strict=None):
    members = {"name": name, "description": f"Gets the {name}", "parameters": parameters, "strict": strict}
    return {"type": "function", "function": {key: value for key, value in members.items() if value is not None}}


STRICT = [function("weather", WEATHER, True), function("stock", STOCK, True)]
LOOSE = [function("weather", WEATHER), function("stock", STOCK)]


def named(name):
    return {"type": "function", "function": {"name": name}}


def fits(call):
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        return set(arguments) == {"location", "unit"} and arguments["location"] in PLACES
    return call["function"]["name"] == "stock" and set(arguments) == {"ticker", "days"} and 1 <= arguments["days"] <= 9


class ToolsTest(ServerTest):
    def post(self, content=QUESTION, **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 300, "temperature": 0, **fields})

    def choices(self, content=QUESTION, **fields):
        status, reply = self.post(content, **fields)
        self.assertEqual(status, 200, reply)
        return reply["choices"]

    def calls(self, content=QUESTION, finish="tool_calls", **fields):
        (choice,) = self.choices(content, **fields)
        self.assertEqual(choice["finish_reason"], finish, choice)
        return choice["message"]["tool_calls"]

    def refusal(self, **fields):
        status, reply = self.post(**fields)
        self.assertEqual(status, 400, reply)
        return reply["error"]


class Formats:
    """What holds in every format."""

    def test_required_calls_fit_their_schemas(self):
        for parallel in (True, False):
            for choice in self.choices(
                tools=STRICT, tool_choice="required", parallel_tool_calls=parallel, n=8, temperature=1.2, seed=5
            ):
                calls = choice["message"].get("tool_calls", [])
                if choice["finish_reason"] == "tool_calls":
                    self.assertTrue(calls)
                    self.assertTrue(all(fits(call) for call in calls), calls)
                    self.assertIsNone(choice["message"]["content"])
                if not parallel:
                    self.assertEqual(choice["finish_reason"], "tool_calls", choice)
                    self.assertEqual(len(calls), 1)

    def test_demanded_calls_fit_schemas_that_are_not_strict(self):
        odd = function("odd", {"type": "object", "properties": {"x": {"$ref": "https://example.com/x"}}})
        for fields in ({"tool_choice": "required"}, {"tool_choice": named("weather")}, {"tool_choice": named("stock")}):
            for tools in (LOOSE, [*LOOSE, odd]):
                fields = {"parallel_tool_calls": False, "n": 4, "temperature": 1.2, "seed": 5, **fields}
                for choice in self.choices(tools=tools, **fields):
                    (call,) = choice["message"]["tool_calls"]
                    if call["function"]["name"] != "odd":
                        self.assertTrue(fits(call), call)
        # A schema that cannot be followed is dropped, as before.
        (choice,) = self.choices(tools=[odd], tool_choice="required", parallel_tool_calls=False, max_tokens=100)
        self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "odd")

    def test_a_named_function_is_called(self):
        for name in ("weather", "stock"):
            (call,) = self.calls(finish="stop", tools=STRICT, tool_choice=named(name), parallel_tool_calls=False)
            self.assertEqual(call["function"]["name"], name)
            self.assertTrue(fits(call), call)

    def test_a_stream_brings_the_same_call_piece_by_piece(self):
        body = {
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": 300,
            "tools": STRICT,
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
        events = [json.loads(event) for event in self.server.events("/v1/chat/completions", {**body, "stream": True})[:-1]]
        deltas = [event["choices"][0]["delta"] for event in events]
        calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
        self.assertEqual([call["index"] for call in calls], [0] * len(calls))
        self.assertEqual([call["function"].get("name") for call in calls[1:]], [None] * (len(calls) - 1))
        self.assertGreater(len(calls), 3)  # the arguments came in pieces
        (whole,) = self.calls(tools=STRICT, tool_choice="required", parallel_tool_calls=False)
        self.assertEqual(calls[0]["function"]["name"], whole["function"]["name"])
        self.assertEqual("".join(call["function"]["arguments"] for call in calls), whole["function"]["arguments"])
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")
        self.assertFalse(any(delta.get("content") for delta in deltas))

    def test_a_draft_changes_nothing(self):
        fields = {"tools": STRICT, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.0, "seed": 3}
        (drafted,) = self.calls(**fields)
        (plain,) = self.calls(**fields, use_draft=False)
        self.assertEqual(drafted["function"], plain["function"])

    def test_an_answer_may_call_and_does_not(self):
        for tools in (STRICT, LOOSE):
            (choice,) = self.choices(tools=tools)
            self.assertEqual(choice["message"]["content"], answer_key()["tandem"])
            self.assertNotIn("tool_calls", choice["message"])
            self.assertEqual(choice["finish_reason"], "stop")


class Hermes(Formats, ToolsTest):
    """The embedded pair's chat template has no format."""

    def test_llgtrts_tool_tests(self):
        for strict in (False, True):
            weather = [function("weather", WEATHER, strict)]
            for choice in self.choices("What is the weather in London?", tools=weather, tool_choice="required", n=10,
                                       parallel_tool_calls=False, temperature=1.2, seed=1):
                for call in choice["message"].get("tool_calls", []):
                    self.assertEqual(call["function"]["name"], "weather")
                    if strict:
                        self.assertIn(json.loads(call["function"]["arguments"])["location"], PLACES)
                    elif choice["finish_reason"] == "tool_calls":
                        self.assertIsInstance(json.loads(call["function"]["arguments"]), dict)
                if strict:
                    self.assertEqual(choice["finish_reason"], "tool_calls", choice)
            for choice in self.choices(QUESTION, tools=weather, n=10, temperature=0.2, seed=2):
                self.assertNotIn("tool_calls", choice["message"])
                self.assertNotIn("function", choice["message"]["content"])

    def test_malformed_calls_of_the_past_harm_nothing(self):
        for calls in (
            [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"location": '}}],
            [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": "London"}}],
            [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": None}}],
            [{"function": {"name": "weather"}}],
            [],
        ):
            messages = [
                {"role": "user", "content": "Is it raining?"},
                {"role": "assistant", "tool_calls": calls},
                {"role": "user", "content": QUESTION},
            ]
            self.assertEqual(len(self.choices(messages, tools=LOOSE)), 1, calls)
        for calls in ("x", {}, [1], [{}], [{"function": {}}], [{"function": {"name": 1}}], [{"id": 1, "function": {"name": "f"}}]):
            status, reply = self.post([{"role": "assistant", "tool_calls": calls}], tools=LOOSE)
            self.assertEqual(status, 400, reply)
            self.assertTrue(reply["error"]["param"].startswith("messages[0].tool_calls"), reply)
        self.assertEqual(self.choices()[0]["message"]["content"], answer_key()["tandem"])

    def test_only_allowed_functions_are_called(self):
        for mode in ("required", "auto"):
            allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named("stock")]}}
            for choice in self.choices(tools=STRICT, tool_choice=allowed, n=4, temperature=1.5, seed=9, parallel_tool_calls=False):
                calls = choice["message"].get("tool_calls", [])
                self.assertEqual([call["function"]["name"] for call in calls], ["stock"] * len(calls))
                self.assertEqual(len(calls), 1 if mode == "required" else len(calls))

    def test_a_call_that_is_cut_off_is_shown_as_far_as_it_came(self):
        (choice,) = self.choices(tools=STRICT, tool_choice=named("weather"), max_tokens=40)
        self.assertEqual(choice["finish_reason"], "length")
        whole = self.calls(finish="stop", tools=STRICT, tool_choice=named("weather"), parallel_tool_calls=False)[0]
        (call,) = choice["message"]["tool_calls"]
        self.assertTrue(whole["function"]["arguments"].startswith(call["function"]["arguments"]), call)

    def test_functions_without_parameters(self):
        (call,) = self.calls(tools=[function("now", strict=True)], tool_choice="required", parallel_tool_calls=False)
        self.assertEqual(json.loads(call["function"]["arguments"]), {})
        # Those of one that is not strict are any object, in which this model may go on and on.
        (choice,) = self.choices(tools=[function("now")], tool_choice="required", parallel_tool_calls=False, max_tokens=100)
        (call,) = choice["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "now")
        self.assertTrue(call["function"]["arguments"].startswith("{"), call)

    def test_an_answer_in_json_or_a_call(self):
        answer = {"type": "object", "properties": {"word": {"const": "tandem"}}, "required": ["word"], "additionalProperties": False}
        (choice,) = self.choices(
            tools=STRICT, response_format={"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": answer}}
        )
        if choice["message"].get("tool_calls"):
            self.assertTrue(all(fits(call) for call in choice["message"]["tool_calls"]))
        else:
            self.assertEqual(json.loads(choice["message"]["content"]), {"word": "tandem"})

    def test_a_demanded_call_wins_over_an_answer_in_json(self):
        form = {"type": "json_object"}
        (call,) = self.calls(tools=STRICT, tool_choice="required", response_format=form, parallel_tool_calls=False)
        self.assertTrue(fits(call), call)
        # As instructor's RESPONSES_TOOLS asks.
        tool = {"type": "function", **STRICT[1]["function"]}
        body = {"input": QUESTION, "tools": [tool], "tool_choice": {"type": "function", "name": "stock"}, "text": {"format": form}}
        status, reply = self.server.post("/v1/responses", {"max_output_tokens": 300, "temperature": 0, **body})
        self.assertEqual(status, 200, reply)
        (item,) = [item for item in reply["output"] if item["type"] == "function_call"]
        self.assertEqual(item["name"], "stock")
        self.assertEqual(set(json.loads(item["arguments"])), {"ticker", "days"})

    def test_refusals_name_the_function_and_the_keyword(self):
        bad = function("odd", {"type": "object", "properties": {"x": {"if": True}}}, True)
        error = self.refusal(tools=[*STRICT, bad])
        self.assertEqual(error["param"], "tools[2].function.parameters")
        self.assertIn('the function "odd": the keyword "if" of the JSON schema is not supported', error["message"])
        # Its schema matters only where it is followed.
        self.assertEqual(len(self.choices(tools=[function("odd", {"type": "object", "if": True})])), 1)
        self.assertEqual(self.refusal(tools=STRICT, tool_choice="required", guided_regex="a+")["param"], "tool_choice")
        self.assertEqual(self.refusal(tools=STRICT, guided_regex="a+")["param"], "tools")
        self.assertEqual(self.refusal(tools=STRICT, tool_choice=named("nobody"))["param"], "tool_choice")
        many = [function(f"f{i}", WEATHER, True) for i in range(129)]
        self.assertEqual(self.refusal(tools=many)["param"], "tools")

    def test_many_functions(self):
        many = [function(f"function_{i}_with_a_rather_long_name_as_some_generators_make_them"[:64], WEATHER, True) for i in range(128)]
        name = many[77]["function"]["name"]
        (call,) = self.calls(finish="stop", tools=many, tool_choice=named(name), parallel_tool_calls=False)
        self.assertEqual(call["function"]["name"], name)
        (call,) = self.calls(tools=many, tool_choice="required", parallel_tool_calls=False)
        self.assertIn(call["function"]["name"], [tool["function"]["name"] for tool in many])


class Mistral(Formats, ToolsTest):
    arguments = ("--tool_format", "mistral")


class Llama3(Formats, ToolsTest):
    arguments = ("--tool_format", "llama3")


class Loop(ToolsTest):
    def test_an_agents_loop_ends_with_an_answer(self):
        question = {"role": "user", "content": QUESTION}
        developer = {"role": "developer", "content": "Answer briefly."}
        calls = self.calls(tools=STRICT, tool_choice="required", parallel_tool_calls=False)
        asked = {"role": "assistant", "content": None, "tool_calls": calls}
        answered = {"role": "tool", "tool_call_id": calls[0]["id"], "content": QUESTION}
        (choice,) = self.choices([developer, question, asked, answered], tools=STRICT[:1], tool_choice="none")
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertTrue(choice["message"]["content"])
        (choice,) = self.choices([question, asked, answered], tools=LOOSE)
        self.assertEqual(choice["finish_reason"], "stop")


class NoFormat(ToolsTest):
    arguments = ("--tool_format", "none")

    def test_calls_that_need_a_format_are_refused(self):
        self.assertEqual(self.refusal(tools=LOOSE, tool_choice="required")["param"], "tool_choice")
        self.assertEqual(self.refusal(tools=STRICT)["param"], "tools")
        self.assertEqual(self.choices(tools=LOOSE)[0]["message"]["content"], answer_key()["tandem"])


if __name__ == "__main__":
    unittest.main()
