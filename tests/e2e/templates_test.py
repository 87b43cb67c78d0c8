"""Chat templates as models ship them, through conversations of two turns: what the server writes in its answer, the same template
must take back. The embedded pair's weights with the templates of others; a regular expression makes it answer as such a model
would. Standard library only.

    python3 tests/e2e/templates_test.py build/dev/tandem
"""

import json
import re
import shutil
import tempfile
import unittest
from pathlib import Path

from harness import REPOSITORY, Server

MODEL = REPOSITORY / "models/dictionary/target"
OURS = REPOSITORY / "tests/e2e/chat_templates"
RENDERED = REPOSITORY / "rust/text/tests/chat_templates"  # compared with Jinja2's own output there
FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
QUESTION = {"role": "user", "content": "hi"}


def exactly(text):
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text).replace("\n", "\\n")


def source(path):
    return path.read_text(encoding="utf-8")


class TemplateTest(unittest.TestCase):
    """`template`: as in tokenizer_config.json."""

    template = None
    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        for file in MODEL.iterdir():
            (cls.folder / file.name).symlink_to(file)
        config = json.loads(source(MODEL / "tokenizer_config.json"))
        config["chat_template"] = cls.template
        (cls.folder / "tokenizer_config.json").unlink()
        (cls.folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        cls.server = Server(cls.folder, *cls.arguments)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        shutil.rmtree(cls.folder)
        assert code == 0, f"the server ended with {code}:\n{''.join(cls.server.lines)}"

    def post(self, messages, answer=None, headers=None, **fields):
        body = {"messages": messages, "max_tokens": 100, "temperature": 0, **fields}
        if answer is not None:
            body["regex"] = exactly(answer)
        status, _, text = self.server.request("POST", "/v1/chat/completions", body, headers)
        return status, json.loads(text)

    def message(self, messages, answer=None, **fields):
        status, reply = self.post(messages, answer, **fields)
        self.assertEqual(status, 200, reply)
        (choice,) = reply["choices"]
        return choice["message"]

    def assert_reads(self, message, content, reasoning=None):
        self.assertEqual(message["content"], content, message)
        self.assertEqual(message.get("reasoning_content"), reasoning, message)

    def two_turns(self, written, arguments, **fields):
        """The model writes a call; the client sends it back with a result. Returns the first message."""
        first = self.message([QUESTION], written, tools=TOOLS, **fields)
        (call,) = first["tool_calls"]
        self.assertIsNone(first["content"])
        self.assertEqual(call["function"], {"name": "add", "arguments": arguments})
        result = {"role": "tool", "tool_call_id": call["id"], "content": "4"}
        second = self.message([QUESTION, first, result], "It is 4.", tools=TOOLS, **fields)
        self.assert_reads(second, "It is 4.")
        return first


class Mistral(TemplateTest):
    """Of Mistral-7B-Instruct-v0.3, which refuses ids other than of nine characters."""

    template = source(RENDERED / "mistral_tools.jinja")
    call = '[TOOL_CALLS][{"name": "add", "arguments": {"x": 12345678901234567890123, "y": 1e2}}]'

    def test_its_ids_go_back_into_the_template(self):
        first = self.two_turns(self.call, '{"x": 12345678901234567890123, "y": 1e2}')
        self.assertRegex(first["tool_calls"][0]["id"], r"^[0-9A-Za-z]{9}$")

    def test_other_ids_are_refused_by_the_template(self):
        first = self.message([QUESTION], self.call, tools=TOOLS)
        first["tool_calls"][0]["id"] = "call_1"
        status, reply = self.post([QUESTION, first, {"role": "tool", "tool_call_id": "call_1", "content": "4"}], tools=TOOLS)
        self.assertEqual(status, 400, reply)
        self.assertIn("Tool call IDs should be alphanumeric", reply["error"]["message"])

    def test_requests_of_one_id_get_calls_of_different_ids(self):
        ids = set()
        for _ in range(2):
            _, reply = self.post([QUESTION], self.call, {"X-Request-Id": "trace-7"}, tools=TOOLS, n=2)
            ids |= {choice["message"]["tool_calls"][0]["id"] for choice in reply["choices"]}
        self.assertEqual(len(ids), 4)

    def test_a_stream_and_a_response_have_such_ids_too(self):
        body = {"messages": [QUESTION], "tools": TOOLS, "regex": exactly(self.call), "max_tokens": 100, "stream": True}
        events = [json.loads(event) for event in self.server.events("/v1/chat/completions", body)[:-1]]
        calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual([bool(re.fullmatch("[0-9A-Za-z]{9}", call["id"])) for call in calls if "id" in call], [True])
        tools = [{"type": "function", **FUNCTION}]
        body = {"input": [QUESTION], "tools": tools, "regex": exactly(self.call), "max_output_tokens": 100}
        status, reply = self.server.post("/v1/responses", body)
        self.assertEqual(status, 200, reply)
        call_id = reply["output"][0]["call_id"]
        self.assertRegex(call_id, r"^[0-9A-Za-z]{9}$")
        history = [QUESTION, *reply["output"], {"type": "function_call_output", "call_id": call_id, "output": "4"}]
        status, reply = self.server.post("/v1/responses", {**body, "input": history, "regex": "It is 4"})
        self.assertEqual((status, reply.get("output", [{}])[0].get("type")), (200, "message"), reply)


class Hermes(TemplateTest):
    """Hermes-3: its template for requests with tools is another one."""

    template = [
        {"name": "default", "template": source(RENDERED / "chatml.jinja")},
        {"name": "tool_use", "template": source(OURS / "hermes_tool_use.jinja")},
    ]
    call = '<tool_call>\n{"name": "add", "arguments": {"x":  1}}\n</tool_call>'

    def test_the_template_of_tools_shows_its_calls(self):
        first = self.two_turns(self.call, '{"x":  1}')
        self.assertTrue(first["tool_calls"][0]["id"].startswith("call_"), first)
        self.assert_reads(self.message([QUESTION], self.call), self.call)


class DeepSeek(TemplateTest):
    """DeepSeek-V3.1 closes its reasoning where it opens the turn, unless `thinking` is set; after a result it opens no turn."""

    template = source(OURS / "deepseek_v31.jinja")

    def test_the_answer_is_content_unless_the_model_thinks(self):
        for fields in ({}, {"chat_template_kwargs": {"thinking": False}}, {"tools": TOOLS}):
            first = self.message([QUESTION], "The answer is 4.", **fields)
            self.assert_reads(first, "The answer is 4.")
            second = self.message([QUESTION, first, QUESTION], "It is 5.", **fields)
            self.assert_reads(second, "It is 5.")

    def test_a_stream_and_a_response_agree(self):
        body = {"messages": [QUESTION], "regex": "The answer is 4", "stream": True}
        deltas = [json.loads(event)["choices"][0]["delta"] for event in self.server.events("/v1/chat/completions", body)[:-1]]
        self.assertEqual("".join(delta.get("content", "") for delta in deltas), "The answer is 4")
        status, reply = self.server.post("/v1/responses", {"input": "hi", "regex": "The answer is 4"})
        self.assertEqual((status, [item["type"] for item in reply["output"]]), (200, ["message"]), reply)

    def test_reasoning_that_the_template_opens_is_free_and_comes_first(self):
        message = self.message([QUESTION], "The answer is 4.", chat_template_kwargs={"thinking": True}, max_tokens=12)
        self.assertEqual(message["content"], "")
        self.assertTrue(message["reasoning_content"])
        self.assertFalse("The answer is 4.".startswith(message["reasoning_content"]))

    def test_calls_that_must_come_and_their_results(self):
        first = self.message([QUESTION], tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        self.assertEqual(first["tool_calls"][0]["function"]["name"], "add", first)
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "4"}
        self.assert_reads(self.message([QUESTION, first, result], "It is 4.", tools=TOOLS), "It is 4.")


class Qwen(TemplateTest):
    """Qwen3: the model itself begins its reasoning, unless the template closes it."""

    template = source(RENDERED / "qwen_tools.jinja")
    call = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'

    def test_reasoning_before_a_call(self):
        first = self.two_turns("<think>\nHm.\n</think>\n\n" + self.call, "{}")
        self.assertEqual(first["reasoning_content"], "Hm.")

    def test_closed_reasoning_leaves_content(self):
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        self.two_turns(self.call, "{}", **off)
        self.assert_reads(self.message([QUESTION], "It is 4.", **off), "It is 4.")

    def test_a_question_about_marks_opens_nothing(self):
        question = {"role": "user", "content": "What does <think>"}
        self.assert_reads(self.message([question], "It is 4."), "It is 4.")


class QwenThinking(TemplateTest):
    """Qwen3-Thinking opens the reasoning in each turn."""

    template = source(RENDERED / "qwen_tools.jinja").split("{%- if add_generation_prompt %}")[0] + (
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}"
    )
    schema = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"const": {"a": 1}}}}

    def test_a_schema_describes_what_follows_the_reasoning(self):
        message = self.message([QUESTION], response_format=self.schema, max_tokens=12)
        self.assertEqual(message["content"], "")
        self.assertTrue(message["reasoning_content"])

    def test_a_message_that_is_continued_after_its_reasoning(self):
        last = {"role": "assistant", "content": "So: "}
        message = self.message([QUESTION, last], "It is 4.", continue_final_message=True)
        self.assert_reads(message, "It is 4.")

    def test_the_answer_goes_on_behind_the_last_message(self):
        for content in ("s", "im", "end", "</s", "hello "):
            body = {"messages": [QUESTION, {"role": "assistant", "content": content}], "continue_final_message": True}
            status, reply = self.server.post("/tokenize", {**body, "return_token_strs": True})
            self.assertEqual(status, 200, reply)
            text = "".join(reply["token_strs"])
            self.assertTrue(text.endswith("</think>\n\n" + content), text)


class NoReasoning(QwenThinking):
    """Where the operator says that answers hold no reasoning, the grammar begins at once."""

    arguments = ("--reasoning_format", "none")

    def test_a_schema_describes_what_follows_the_reasoning(self):
        message = self.message([QUESTION], response_format=self.schema)
        self.assertEqual(json.loads(message["content"]), {"a": 1})
        self.assertNotIn("reasoning_content", message)


if __name__ == "__main__":
    unittest.main()
