"""Requests that must not be answered, as tables: parameters, JSON, and grammars that are deep, wide, ambiguous or endless."""

import itertools
import json

NO_NUMBERS = ["5", True, [1], {"a": 1}]
INTEGERS = [
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "top_k",
    "logprobs",
    "prompt_logprobs",
    "priority",
    "seed",
]
REALS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
FLAGS = ["stream", "echo", "ignore_eos"]

# (field, value): of /v1/completions, each refused by its field.
FIELDS = [
    *itertools.product(INTEGERS, [*NO_NUMBERS, 1.5, 10**30, -(2**63) - 1]),
    *itertools.product(REALS, [*NO_NUMBERS, 1e300, -1e300]),
    *itertools.product(FLAGS, [1, "yes", [True]]),
    ("n", 2**31),
    ("n", -1),
    ("n", 0),
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
    ("stop", {"a": "b"}),
    ("stop", [""]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [2**31]),
    ("stop_token_ids", [10**6]),
    ("stop_token_ids", [5] * 100_000),
    ("stop_token_ids", "5"),
    ("logit_bias", {"99999999": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"5": 1000}),
    ("logit_bias", {"5": "1"}),
    ("logit_bias", {str(i): 1 for i in range(5000)}),
    ("logit_bias", [1]),
    ("logprobs", -1),
    ("logprobs", 21),
    ("prompt_logprobs", -2),
    ("prompt_logprobs", 1000),
    ("temperature", -1),
    ("top_p", 2),
    ("top_p", -0.1),
    ("top_k", -2),
    ("min_p", 1.5),
    ("presence_penalty", 1e9),
    ("frequency_penalty", -1e9),
    ("repetition_penalty", 0),
    ("priority", 2**64),
    ("stream_options", {}),
    ("stream_options", [1]),
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
    ("bad_words", [1]),
    ("bad_words", "x" * 1_000_000),
    ("model", 5),
    ("model", ["x"]),
    ("guided_grammar", 5),
    ("guided_grammar", ["x"]),
    ("structured_outputs", 5),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}),
    ("guided_choice", []),
    ("guided_choice", [1]),
    ("guided_regex", 5),
    ("guided_json", 5),
    ("response_format", {"type": "xml"}),
    ("response_format", "json"),
]

# What /v1/chat/completions must refuse.
CHATS = [
    {"messages": []},
    {"messages": "x"},
    {"messages": [1]},
    {"messages": {}},
    {"messages": [{}]},
    {"messages": [{"role": 5, "content": "x"}]},
    {"messages": [{"content": "x"}]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": [1]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": "word " * 20_000}]},
    {"messages": [{"role": "user", "content": "x"}] * 20_000},
    {"messages": [{"role": "nobody", "content": "x"}]},
    {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3},
    {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 1000},
    {"messages": [{"role": "user", "content": "x"}], "logprobs": 5},
    {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 5},
    {"messages": [{"role": "user", "content": "x"}], "n": 2**31},
]

# Bodies that are no good JSON, or none that a request may be made of.
BAD_JSON = {
    "an array 101 deep": '{"prompt": ' + "[" * 101 + "]" * 101 + "}",
    "an array 250,000 deep": "[" * 250_000 + "]" * 250_000,
    "an object 250,000 deep": '{"a":' * 250_000 + "1" + "}" * 250_000,
    "250,000 open brackets": "[" * 250_000,
    "half of a surrogate pair": '{"prompt": "\\ud800"}',
    "halves in the wrong order": '{"prompt": "\\udc00\\ud800"}',
    "bytes that are no UTF-8": b'{"prompt": "\xff\xfe"}',
    "an overlong encoding": b'{"prompt": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "a byte cut off": b'{"prompt": "\xe2\x82"}',
    "a control character": '{"prompt": "a\nb"}',
    "a zero byte after all": b'{"prompt": "x"}\0',
    "a name twice": '{"prompt": "x", "prompt": "y"}',
    "a number beyond all": '{"prompt": "x", "temperature": 1e400}',
    "a number of 100,000 digits": '{"prompt": "x", "seed": ' + "9" * 100_000 + "}",
    "not a number": '{"prompt": "x", "temperature": NaN}',
    "a leading zero": '{"prompt": "x", "max_tokens": 01}',
    "an open string": '{"prompt": "x',
    "nothing": "",
    "a comma too many": '{"prompt": "x",}',
    "a comment": '{"prompt": "x" /* y */}',
    "a second value": '{"prompt": "x"} {}',
    "a value that is no object": '"prompt"',
}


def nested(start, inner, end, depth):
    return start * depth + inner + end * depth


def words(count):
    return [f"w{i * 7919 % 1_000_003}" for i in range(count)]


DEEP_SCHEMAS = [
    ('{"items":', "{}", "}"),
    ('{"properties":{"a":', "{}", "}}"),
    ('{"anyOf":[', "{}", ',{"type":"null"}]}'),
    ('{"allOf":[', "{}", ',{"minLength":2}]}'),
    ('{"oneOf":[', '{"type":"null"}', ',{"type":"string"}]}'),
    ('{"additionalProperties":', "{}", "}"),
]
BOUNDS = {"Items": "array", "Length": "string", "Properties": "object"}
REGEXES = [
    "(a+)+b",
    "(a|aa|aaa|aaaa)*b",
    "((a{1000}){1000}){1000}",
    "(((a{1,99}){1,99}){1,99}){1,99}",
    "([a-z]{1,5000}){1,5000}",
    "(a|b)*a(a|b){300}",
    r"\p{L}*[aé]\p{L}{60}x",
    "[a-z]{1,99}[a-m]{1,99}[b-z]{1,99}[c-y]{1,99}x",
    "(" * 10_000 + "a" + ")" * 10_000,
    "(a|" * 190 + "b" + ")*" * 190,
    "a*" * 8_000,
    "a*" * 50_000,
    "(a?b)?" * 2_700,
    "(a?b)?" * 20_000,
    "(a*)*" * 3_000,
    "(a{0,60}){0,60}" * 30,
    "(.*a){25}",
    "(.*){30}b",
    ".{60000}",
    "[^a]*(a[^a]*){500}",
    "(x+x+)+y",
    "(?i)" + "straße" * 1000,
    "(",
    "a{2,1}",
    "(?=a)b",
    r"(a)\1",
    "[z-a]",
    r"\p{Nothing}",
    "*",
    "",
]
LARKS = [
    'start: start "a" | start start | "a"',
    'start: s\ns: s s s | s s | "a" | ',
    "start: start | a\na: a a | ",
    "start: ({})*".format("|".join(f"/a{{{i}}}[a-z]/" for i in range(2000))),
    "start: " + nested("(", '"a"', ")", 10_000),
    "start: " + nested("(", '"a"', ")*", 190),
    "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(8000)) + '\nr8000: "c"',
    "start: T0\n" + "\n".join(f'T{i}: "a" T{i + 1} | "b"' for i in range(8000)) + '\nT8000: "c"',
    "start: T0\n" + "\n".join(f'T{i}: ("a" T{i + 1})*' for i in range(3000)) + '\nT3000: "c"',
    "start: T0\n" + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(60)) + '\nT60: "c"',
    "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(60)) + '\nr60: "c" | "d"',
    'start: ("a" "b"?){1,1000000000}',
    'start: (((("a"){1,999} "b"?){1,999} "c"?){1,999}){1,999}',
    "start: %json " + json.dumps({"enum": words(5000)}),
    'start: %json {"maxItems": 1000000}',
    f"start: /{'a*' * 16_000}/",
    "start: T\nT: " + '"a"*' * 8_000,
    "start: " + '"a"*' * 8_000,
    f"start: /{'(a?b)?' * 5_000}/",
    "start: T\nT: T",
    "start: T\nT: U\nU: T",
    "start: missing",
    "start:",
    "",
    "%import common.INT",
    "start: <|no_such_token|>",
    "start: /(/",
    "start: 5",
    "%%%%",
    "\0",
]


def schemas():
    for start, inner, end in DEEP_SCHEMAS:
        for depth in (10, 40, 60, 130, 2_000, 10_000):
            yield nested(start, inner, end, depth)
    for count in (100, 2_000, 12_000, 25_000):
        yield json.dumps({"enum": words(count)})
        yield json.dumps({"anyOf": [{"const": word} for word in words(count)]})
        yield json.dumps({"enum": list(range(count))})
        yield json.dumps({"properties": {}, "required": words(count)})
        yield json.dumps({"type": "object", "properties": {word: {"type": "string"} for word in words(min(count, 8000))}})
    for end, (noun, kind) in itertools.product(("min", "max"), BOUNDS.items()):
        for value in (1_000, 10_000, 1_000_000, 1_000_000_000, -1, "x"):
            yield json.dumps({"type": kind, end + noun: value})
    for regex in REGEXES:
        yield json.dumps({"type": "string", "pattern": regex})
    yield from (
        '{"$ref": "#"}',
        '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
        '{"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}}',
        '{"$ref": "#/nowhere"}',
        '{"$ref": "http://127.0.0.1:9/schema.json"}',
        '{"$ref": "file:///etc/passwd"}',
        '{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}',
        '{"allOf": [{"$ref": "#"}]}',
        '{"not": {"$ref": "#"}}',
        '{"type": "number", "multipleOf": 1e-300}',
        '{"type": "integer", "multipleOf": 999999999}',
        '{"type": "integer", "multipleOf": 0}',
        '{"type": "number", "minimum": -1e308, "maximum": 1e308}',
        '{"type": "integer", "minimum": 5, "maximum": 3}',
        '{"type": "integer", "minimum": ' + "9" * 400 + "}",
        '{"minimum": "' + "é" * 200 + '"}',
        '{"maxItems": 9999, "items": {"maxItems": 9999, "items": {"maxItems": 9999}}}',
        '{"type": ["string", "nothing"]}',
        '{"enum": []}',
        "5",
        "[]",
    )
    yield json.dumps({"type": "object", "patternProperties": {f"^a{i}[a-z]*b": True for i in range(200)}})
    yield json.dumps({"anyOf": [{"pattern": "a*" * 8_000} for _ in range(15)]})
    yield json.dumps({"anyOf": [{"maxItems": 9_000 + i, "items": {"const": i}} for i in range(1000)]})


def grammars():
    """The fields of a request for each of them."""
    for text in schemas():
        yield {"guided_json": text}
    for text in REGEXES:
        yield {"guided_regex": text}
    for text in LARKS:
        yield {"guided_grammar": text}
    yield {"guided_choice": words(20_000)}
    yield {"guided_choice": ["ab" * 100_000]}
    yield {"guided_choice": ["\0", "\ud83d\ude00" * 1000]}
