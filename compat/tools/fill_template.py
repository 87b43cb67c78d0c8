#!/usr/bin/env python3
"""Fills in the variables of a model's config.pbtxt.

    fill_template.py -i REPO/tensorrt_llm/config.pbtxt engine_dir:/engines/llama,gpu_device_ids:0,1,decoupled_mode:true

Substitutions are `name:value`, separated by commas. A value may hold commas: a piece without a colon continues the
value before it, and `\\,` and `\\:` stand for the characters themselves. `name:` fills in nothing. `${name}` and
`$name` are replaced, `$$` becomes `$`, and variables that are not named stay as they are.
"""

import argparse
import os
import re
import shutil
import string
import sys
import tempfile
from pathlib import Path

# Numbers that old command lines leave to this tool. Zero means the server's own bound, and no delay.
DEFAULTS = {"max_queue_size": "0", "max_queue_delay_microseconds": "0"}


def parse_substitutions(text):
    """The values by variable, in the order of the text."""
    values = {}
    name = None
    for piece in re.split(r"(?<!\\),", text):
        key, *value = (
            part.replace(r"\,", ",").replace(r"\:", ":") for part in re.split(r"(?<!\\):", piece, maxsplit=1)
        )
        if value:
            name = key.strip()
            values[name] = value[0]
        elif name is not None and key:
            values[name] += "," + key
        elif key:
            raise ValueError(f"'{piece}' has no value; write name:value,name:value")
    return values


def variables_of(text):
    """The names that a substitution can replace."""
    return {found["named"] or found["braced"] for found in string.Template.pattern.finditer(text)} - {None}


def fill(text, values):
    return string.Template(text).safe_substitute({**DEFAULTS, **values})


def replace_file(path, text):
    """The file has its old content or all of the new one, never a part; it keeps its mode."""
    path = Path(path).resolve()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file_path", help="the file with ${variables}")
    parser.add_argument("substitutions", help="name:value,name:value")
    parser.add_argument("--in_place", "-i", action="store_true", help="rewrite the file instead of printing the result")
    options = parser.parse_args(arguments)
    try:
        values = parse_substitutions(options.substitutions)
        with open(options.file_path, encoding="utf-8", newline="") as file:
            text = file.read()
        filled = fill(text, values)
        if options.in_place:
            replace_file(options.file_path, filled)
        else:
            sys.stdout.write(filled)
    except (OSError, ValueError) as error:
        sys.exit(f"fill_template.py: {error}")
    for name in sorted(values.keys() - variables_of(text)):
        print(f"fill_template.py: {options.file_path} has no variable '{name}'; its value is not used", file=sys.stderr)


if __name__ == "__main__":
    main()
