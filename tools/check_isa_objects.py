#!/usr/bin/env python3
"""Searches object files compiled for newer CPUs for functions that the linker may share with others.

    tools/check_isa_objects.py OBJECT...      checks only those named *avx* and *amx*

An inline function or template that such a file defines is a weak symbol; the linker keeps one copy for the whole
program, perhaps this one, and an older CPU would then execute an instruction it does not know.
"""

import re
import subprocess
import sys


def weak_symbols(path):
    lines = subprocess.run(["nm", "-C", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    return [line for line in lines.splitlines() if re.match(r"\S+ [WVuw] ", line)]


def main(paths):
    paths = [path for path in paths if re.search(r"(avx|amx)[^/]*$", path)]
    found = [f"{path}: {symbol}" for path in paths for symbol in weak_symbols(path)]
    for line in found:
        print(line)
    print(f"{len(paths)} object files, {len(found)} symbols that the linker could share")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
