#!/usr/bin/env python3
"""Writes expected.json: what Jinja2 makes of the templates beside this file, set up as transformers does. Needs jinja2."""

import datetime
import json
import pathlib

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime.fromtimestamp(1735603200, datetime.timezone.utc)


class Generation(Extension):
    """transformers' {% generation %}, which only marks."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(source, conversation):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    variables = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    return environment.from_string(source).render(**{**variables, **conversation})


def main():
    conversations = json.loads((HERE / "conversations.json").read_text())
    expected = {}
    for template in sorted(HERE.glob("*.jinja")):
        for name, conversation in conversations.items():
            try:
                text = render(template.read_text(), conversation)
            except TemplateError as error:
                text = None
                print(f"{template.stem}, {name}: {error}")
            expected[f"{template.stem}, {name}"] = text
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
