"""A long run: 1,000 generations under strict schemas, each made four times (with and without the draft, alone and among 32).
Every one validates and all four are the same text.

    tests/e2e/constrained_generations.py build/dev/src/apps/tandem
"""

import concurrent.futures
import json
import random
import re
import unittest

from harness import ServerTest, answer_key

GENERATIONS = 1000
WORDS = list(answer_key())


class Schemas:
    """Random schemas of what strict mode takes; small, so that answers end."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def string(self):
        return self.random.choice([
            {"type": "string", "maxLength": self.random.randint(1, 10)},
            {"type": "string", "minLength": 2, "maxLength": 6},
            {"type": "string", "pattern": "^[a-z]{1,6}$"},
            {"type": "string", "pattern": "^[A-C][0-9]{2}(-x)?$"},
        ])  # fmt: skip

    def number(self):
        low = self.random.randint(-50, 50)
        return self.random.choice([
            {"type": "integer", "minimum": low, "maximum": low + self.random.randint(0, 500)},
            {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
        ])  # fmt: skip

    def leaf(self):
        return self.random.choice([
            self.string, self.number, lambda: {"type": "boolean"}, lambda: {"type": "null"},
            lambda: {"const": self.random.choice(["fixed", 7, [1, "a"], {"k": None}])},
            lambda: {"enum": self.random.sample(["red", "green", 1, 2.5, None, True], 3)},
            lambda: {"anyOf": [self.string(), self.number()]},
        ])()  # fmt: skip

    def array(self, depth):
        low = self.random.randint(0, 2)
        return {"type": "array", "items": self.any(depth - 1), "minItems": low, "maxItems": low + self.random.randint(0, 2)}

    def object(self, depth):
        names = self.random.sample(["word", "kind", "uses", "size", "note"], self.random.randint(1, 4))
        return {
            "type": "object",
            "properties": {name: self.any(depth - 1) for name in names},
            "required": [name for name in names if self.random.random() < 0.7],
            "additionalProperties": False,
        }

    def any(self, depth):
        if depth == 0:
            return self.leaf()
        return self.random.choice([self.leaf, lambda: self.array(depth), lambda: self.object(depth)])()

    def next(self):
        # A model as small as this one may write blanks until its tokens are used up.
        return {**self.object(2), "x-guidance": {"whitespace_flexible": False}}


TYPES = {"string": str, "integer": int, "boolean": bool, "null": type(None), "array": list, "object": dict}


def same(a, b):
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def fits(value, schema):
    """The keywords of Schemas."""
    if "const" in schema:
        return same(value, schema["const"])
    if "enum" in schema:
        return any(same(value, one) for one in schema["enum"])
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if type(value) is not TYPES[schema["type"]]:
        return False
    if isinstance(value, str):
        long_enough = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return long_enough and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, dict):
        known = all(name in schema["properties"] for name in value)
        return known and all(name in value for name in schema["required"]) and all(
            fits(member, schema["properties"][name]) for name, member in value.items()
        )
    if isinstance(value, list):
        return schema["minItems"] <= len(value) <= schema["maxItems"] and all(fits(item, schema["items"]) for item in value)
    if type(value) is int:
        return schema["minimum"] <= value <= schema["maximum"] and value % schema.get("multipleOf", 1) == 0
    return True


class GenerationsTest(ServerTest):
    def text(self, request, **more):
        status, reply = self.server.post("/v1/chat/completions", {**request, **more})
        self.assertEqual(status, 200, reply)
        choice = reply["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop", (request, choice))
        return choice["message"]["content"]

    def test_every_one_validates_and_is_the_same_text(self):
        schemas = Schemas(5)
        requests = []
        for i in range(GENERATIONS):
            schema = schemas.next()
            requests.append({
                "messages": [{"role": "user", "content": f'What does "{WORDS[i * 37 % len(WORDS)]}" mean?'}],
                "max_tokens": 400,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}},
                **({"temperature": 0} if i % 2 else {"temperature": 1.0, "seed": i}),
            })  # fmt: skip
        alone = [self.text(request) for request in requests]
        for request, text in zip(requests, alone):
            schema = request["response_format"]["json_schema"]["schema"]
            self.assertTrue(fits(json.loads(text), schema), (schema, text))
        self.assertEqual([self.text(request, use_draft=False) for request in requests], alone)
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            for use_draft in (True, False):
                together = pool.map(lambda request: self.text(request, use_draft=use_draft), requests)
                self.assertEqual(list(together), alone)
        print(f"{len(alone)} generations, {len(set(alone))} different ones, {sum(map(len, alone))} characters")


if __name__ == "__main__":
    unittest.main()
