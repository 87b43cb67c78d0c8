"""Constrained output over HTTP with the embedded pair: what comes out fits the grammar, and is the same with and without
drafts, alone and among others."""

import concurrent.futures
import json
import re
import unittest

from harness import QUESTION, ServerTest, answer_key

WORDS = list(answer_key())[::3000]
# A model as small as this one may write line ends until its tokens are used up.
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["noun", "verb", "adjective"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 999},
        "known": {"type": "boolean"},
        "uses": {"type": "array", "items": {"type": "string", "pattern": "^[a-z ]{1,8}$"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["word", "kind", "count", "known", "uses"],
    "additionalProperties": False,
    **COMPACT,
}


def fits_schema(text):
    value = json.loads(text)
    uses = value["uses"]
    return (
        set(value) == set(SCHEMA["required"])
        and isinstance(value["word"], str)
        and len(value["word"]) <= 12
        and value["kind"] in SCHEMA["properties"]["kind"]["enum"]
        and type(value["count"]) is int
        and 1 <= value["count"] <= 999
        and type(value["known"]) is bool
        and 1 <= len(uses) <= 3
        and all(re.fullmatch("[a-z ]{1,8}", use) for use in uses)
    )


def strict(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


class ConstrainedTest(ServerTest):
    def post_chat(self, content=QUESTION, **fields):
        return self.server.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": content}], "max_tokens": 300, **fields},
        )

    def chat(self, content=QUESTION, **fields):
        """The only choice."""
        status, reply = self.post_chat(content, **fields)
        self.assertEqual(status, 200, reply)
        return reply["choices"][0]

    def text(self, content=QUESTION, **fields):
        choice = self.chat(content, **fields)
        self.assertEqual(choice["finish_reason"], "stop", choice)
        return choice["message"]["content"]

    def refusal(self, **fields):
        status, reply = self.post_chat(**fields)
        self.assertEqual(status, 400, reply)
        return reply["error"]

    def test_outputs_fit_a_strict_schema_whoever_drafts_and_runs_beside_them(self):
        for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 11}):
            requests = [
                {"content": f'What does "{word}" mean?', "response_format": strict(SCHEMA), **sampling} for word in WORDS
            ]
            alone = [self.text(**request) for request in requests]
            for text in alone:
                self.assertTrue(fits_schema(text), text)
            undrafted = [self.text(**request, use_draft=False) for request in requests]
            self.assertEqual(undrafted, alone)
            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                together = list(pool.map(lambda request: self.text(**request), requests * 2))
            self.assertEqual(together, alone * 2)

    def test_choices_of_one_request_are_constrained_apart(self):
        status, reply = self.post_chat(response_format=strict(SCHEMA), n=8, temperature=1.5, seed=3)
        self.assertEqual(status, 200, reply)
        texts = [choice["message"]["content"] for choice in reply["choices"]]
        self.assertEqual(len(texts), 8)
        self.assertTrue(all(fits_schema(text) for text in texts), texts)
        self.assertGreater(len(set(texts)), 1)

    def test_every_kind_constrains(self):
        lark = 'start: "<" WORD ("," WORD){1,2} ">"\nWORD: /[a-z]{1,5}/'
        for fields, pattern in [
            ({"response_format": {"type": "json_object", "schema": {"const": "a", **COMPACT}}}, '"a"'),
            ({"response_format": {"type": "regex", "regex": "[0-9]{3}-[a-f]{2}"}}, "[0-9]{3}-[a-f]{2}"),
            ({"guided_choice": ["yes", "no"]}, "yes|no"),
            ({"guided_regex": "[A-C]{4}"}, "[A-C]{4}"),
            ({"guided_json": {"type": "null"}}, "null"),
            ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
            ({"response_format": {"type": "lark_grammar", "lark_grammar": lark}}, "<[a-z]{1,5}(,[a-z]{1,5}){1,2}>"),
            ({"response_format": {"type": "llguidance", "grammar": {"grammars": [{"lark_grammar": lark}]}}}, "<.*>"),
        ]:
            self.assertRegex(self.text(**fields), f"^({pattern})$", fields)
        _, reply = self.server.post(
            "/v1/completions", {"prompt": QUESTION, "max_tokens": 50, "guided_choice": [" alpha", " beta"]}
        )
        self.assertIn(reply["choices"][0]["text"], [" alpha", " beta"])

    def test_the_triton_door_takes_guides(self):
        _, reply = self.server.generate(
            QUESTION, guided_decoding_guide_type="regex", guided_decoding_guide="[0-9]{4}"
        )
        self.assertRegex(reply["text_output"], "^[0-9]{4}$")
        status, reply = self.server.generate(QUESTION, guided_decoding_guide_type="regex", guided_decoding_guide="(")
        self.assertEqual(status, 400, reply)
        self.assertIn("guided_decoding_guide", reply["error"])

    def test_a_grammar_and_bad_words_hold_together(self):
        self.assertEqual(self.text(guided_choice=["red", "green"], bad_words=["green"]), "red")
        self.assertEqual(self.text(guided_choice=["red", "green"], bad_words=["red"]), "green")

    def test_without_end_tokens_a_whole_output_stops(self):
        self.assertEqual(self.text(guided_choice=["red"], ignore_eos=True), "red")
        self.assertEqual(self.text(guided_choice=["red"], min_tokens=20), "red")

    def test_where_nothing_may_follow_the_request_fails(self):
        status, reply = self.post_chat(guided_choice=["red", "rest"], bad_words=["red", "rest"])
        self.assertEqual(status, 400, reply)
        self.assertIn("no token", reply["error"]["message"])

    def test_streams_are_the_same_text(self):
        body = {
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 300,
            "response_format": strict(SCHEMA),
            "temperature": 0,
        }
        events = self.server.events("/v1/chat/completions", {**body, "stream": True})
        pieces = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]]
        self.assertEqual("".join(pieces), self.text(response_format=strict(SCHEMA), temperature=0))

    def test_hostile_grammars_end_their_own_request(self):
        hostile = [
            {"guided_json": {"type": "array", "minItems": 10**9}},
            {"guided_json": {"not": {"type": "null"}}},
            {"guided_json": "{" * 5000},
            {"guided_regex": "(" * 5000},
            {"guided_regex": "(a*)*" * 4000},
            {"guided_choice": [str(i) * 20 for i in range(20000)]},
            {"guided_grammar": "start: missing"},
            {"guided_choice": []},
            {"guided_choice": ["a", 1]},
        ]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            others = [pool.submit(self.text, guided_choice=["yes", "no"]) for _ in range(20)]
            for fields in hostile:
                error = self.refusal(**fields)
                self.assertEqual(error["param"], next(iter(fields)), error)
            self.assertTrue(all(other.result() in ("yes", "no") for other in others))
        self.assertEqual(self.text(), answer_key()["tandem"])

    def test_refusals_name_field_and_keyword(self):
        error = self.refusal(response_format=strict({"type": "object", "if": True}))
        self.assertEqual(error["param"], "response_format.json_schema.schema")
        self.assertIn('keyword "if" of the JSON schema is not supported', error["message"])
        # Without strict it is ignored.
        loose = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a"], "if": True}}}
        self.assertEqual(self.text(response_format=loose), '"a"')

    def test_a_request_may_forbid_blanks_where_the_server_does_not(self):
        schema = {"enum": [{"a": 1, "b": [2]}]}
        loose = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}, "disable_any_whitespace": True}
        self.assertEqual(self.text(response_format=loose), '{"a":1,"b":[2]}')


class CompactTest(ServerTest):
    """A server whose JSON has no blanks."""

    arguments = ("--json_whitespace", "compact")
    post_chat, chat, text = ConstrainedTest.post_chat, ConstrainedTest.chat, ConstrainedTest.text

    def test_json_has_no_blanks_unless_the_request_keeps_them(self):
        schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"], "additionalProperties": False}
        self.assertEqual(self.text(response_format=strict(schema)), '{"a":1,"b":2}')
        self.assertEqual(json.loads(self.text(response_format=strict(schema) | {"disable_any_whitespace": False})), {"a": 1, "b": 2})


if __name__ == "__main__":
    unittest.main()
