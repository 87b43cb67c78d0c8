#!/usr/bin/env python3
"""Compares every #include under src/ with the order of the layers; prints file:line and the rule it breaks.

    tools/check_layers.py [SOURCE_FOLDER]     default: src beside this folder
    tools/check_layers.py --self-test         plants one violation of each rule and looks for it
"""

import pathlib
import re
import sys
import tempfile

# A folder may include itself and what stands before it.
ORDER = "base tensor quant ops comm model checkpoint engine_folder runtime serve apps".split()

# Folders that see less than the order gives them.
NARROWER = {
    "text": {"base", "text"},  # meets runtime only in serve
    "serve": {"base", "runtime", "text", "serve"},  # speaks protocols: the engine's insides are not its business
}

# Below text and serve a C++ compiler and header-only libraries are enough.
INSTALLED_LIBRARIES = re.compile(r"(boost|prometheus|grpcpp|google/protobuf|openssl|curl)/")
INSTALLED_LIBRARIES_ALLOWED = {"text", "serve", "apps"}

# Seconds of compile time each: paid in a few .cc files, never by everyone who includes a header of ours.
HEAVY = re.compile(r"(nlohmann/|spdlog/|CLI/|boost/|grpcpp/|regex$)")

# Headers from outside src/ that are written with quotes, and who may see them.
OUTSIDE = {"tandem_text.h": {"text"}}  # the C interface of rust/text

INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SOURCES = {".h", ".cc", ".cu", ".cuh", ".inc"}


def visible_from(layer, is_test):
    if layer == "apps":
        return set(ORDER) | set(NARROWER)
    if layer in NARROWER and not is_test:
        return NARROWER[layer]
    if layer == "text":
        return NARROWER["text"]
    # A test may build the world below its folder.
    below = set(ORDER[: ORDER.index(layer) + 1])
    return below | {"text"} if layer == "serve" else below


def problem_with(path, layer, quoted, angled, root):
    """The rule that this include breaks, or None."""
    is_test = path.stem.endswith("_test") or "testing" in path.parts
    if angled:
        if layer not in INSTALLED_LIBRARIES_ALLOWED and INSTALLED_LIBRARIES.match(angled):
            return f"{layer}/ builds with header-only libraries alone; <{angled}> belongs in serve/"
        if path.suffix in {".h", ".cuh"} and HEAVY.match(angled):
            return f"<{angled}> compiles slowly: include it in a .cc file, behind a header of ours"
        return None
    if quoted in OUTSIDE:
        return None if layer in OUTSIDE[quoted] else f'"{quoted}" is seen by {", ".join(OUTSIDE[quoted])} only'
    if not (root / quoted).is_file():
        return f'"{quoted}" is no path from src/ (a library is included with <>)'
    target = quoted.split("/")[0]
    if target in visible_from(layer, is_test):
        return None
    if layer in NARROWER:
        return f"{layer}/ sees only {', '.join(sorted(NARROWER[layer]))}, not {target}/"
    return f"{layer}/ may not see {target}/: the order is {' < '.join(ORDER)}; text/ is seen by serve/ and apps/"


def check(root):
    """Yields one line for each violation."""
    for path in sorted(root.rglob("*")):
        if path.suffix not in SOURCES:
            continue
        relative = path.relative_to(root)
        layer = relative.parts[0]
        if layer not in ORDER and layer not in NARROWER:
            yield f"src/{relative}:1: {layer} is no layer; the order is {' < '.join(ORDER)}, and text"
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            problem = match and problem_with(path, layer, match[1], match[2], root)
            if problem:
                yield f"src/{relative}:{number}: {problem}"


# file, its one line, whether the line is allowed
PLANTED = [
    ("base/a.h", "#include <vector>", True),
    ("base/upward.cc", '#include "tensor/t.h"', False),
    ("tensor/t.h", '#include "base/a.h"', True),
    ("runtime/r.h", '#include "model/m.h"', True),
    ("runtime/text_user.cc", '#include "text/x.h"', False),
    ("model/m.h", '# include "runtime/r.h"', False),
    ("text/x.h", '#include "base/a.h"', True),
    ("text/too_much.cc", '#include "runtime/r.h"', False),
    ("text/crate.cc", '#include "tandem_text.h"', True),
    ("serve/crate.cc", '#include "tandem_text.h"', False),
    ("serve/s.h", '#include "runtime/r.h"', True),
    ("serve/s.cc", '#include "text/x.h"', True),
    ("serve/insides.cc", '#include "tensor/t.h"', False),
    ("serve/service_test.cc", '#include "tensor/t.h"', True),
    ("serve/backwards_test.cc", '#include "apps/p.h"', False),
    ("serve/http/deep.cc", '#include "ops/o.h"', False),
    ("apps/p.h", '#include "ops/o.h"', True),
    ("apps/q.cc", '#include "text/x.h"', True),
    ("ops/o.h", '#include "base/missing.h"', False),
    ("ops/cpu/relative.cc", '#include "o.h"', False),
    ("ops/boost.cc", "#include <boost/json.hpp>", False),
    ("ops/heavy.h", "#include <nlohmann/json.hpp>", False),
    ("ops/heavy.cc", "#include <nlohmann/json.hpp>", True),
    ("util/u.h", "#include <vector>", False),
]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, line, _ in PLANTED:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(line + "\n", encoding="utf-8")
        found = {line.split(":")[0] for line in check(root)}
    expected = {f"src/{name}" for name, _, allowed in PLANTED if not allowed}
    for name in sorted(found ^ expected):
        print(f"{name}: {'reported, but allowed' if name in found else 'planted, but not found'}")
    return 1 if found != expected else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "src").resolve()
    problems = list(check(root))
    print("\n".join(problems) if problems else "layers: every include follows the order")
    return 1 if problems else 0


sys.exit(main())
