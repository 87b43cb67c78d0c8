#!/usr/bin/env python3
"""Compares every #include under src/ with the order of the layers, and looks for circles; prints file:line and why.

    tools/check_layers.py [SOURCE_FOLDER]     default: src beside this folder
    tools/check_layers.py --self-test         plants violations of each rule and looks for them

What serve/ and text/ may not see they may not see through other headers either. A circle of modules (the folders of
src/), of the folders within one (the files directly in a module count as a folder of their own) or of files is refused.
Tests and what lies in testing/ may build the world below their module, and count in no circle of folders.
"""

import collections
import pathlib
import re
import sys
import tempfile

# A folder may include itself and what stands before it.
ORDER = "base tensor ops comm model checkpoint quantize engine_folder runtime serve apps".split()

# Folders that may see less than the order gives them, directly and through their includes.
NARROWER = {
    "text": {"base", "text"},  # meets runtime only in serve
    "sources": {"base", "sources"},  # makes folders out of names; what is in them is not its business
    "serve": {"base", "runtime", "text", "serve"},  # speaks protocols: the engine's insides are not its business
}

# Below text and serve a C++ compiler and header-only libraries are enough.
INSTALLED_LIBRARIES = re.compile(r"(boost|prometheus|grpcpp|google/protobuf|openssl|curl)/|archive(_entry)?\.h$")
INSTALLED_LIBRARIES_ALLOWED = {"text", "serve", "sources", "apps"}

# Seconds of compile time each: paid in a few .cc files, never by everyone who includes a header of ours.
HEAVY = re.compile(r"(nlohmann/(?!json_fwd)|spdlog/|CLI/|boost/|grpcpp/|google/protobuf/|\w+\.pb\.h$|regex$)")

# The inference protocol's messages, generated from proto/, and the folder that speaks it.
MESSAGES = re.compile(r"\w+\.pb\.h$")
MESSAGES_ALLOWED = ("serve/kserve",)

# Headers from outside src/ that are written with quotes, and who may see them.
OUTSIDE = {"tandem_text.h": {"text"}}  # the C interface of rust/text

INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SOURCES = {".h", ".cc", ".cu", ".cuh", ".inc"}

Include = collections.namedtuple("Include", "line quoted angled")  # one of the two is None


def read_includes(root):
    """The includes of each source file, by its path from src/."""
    files = {}
    for path in sorted(root.rglob("*")):
        if path.suffix in SOURCES:
            lines = path.read_text(encoding="utf-8").splitlines()
            found = [(number, INCLUDE.match(line)) for number, line in enumerate(lines, 1) if "include" in line]
            name = path.relative_to(root).as_posix()
            files[name] = [Include(number, match[1], match[2]) for number, match in found if match]
    return files


def layer_of(name):
    return name.split("/")[0]


def folder_of(name):
    return name.rpartition("/")[0]


def is_test(name):
    path = pathlib.PurePosixPath(name)
    return path.stem.endswith("_test") or "testing" in path.parts


def visible_from(name):
    layer = layer_of(name)
    if layer == "apps":
        return set(ORDER) | set(NARROWER)
    if layer in NARROWER and not is_test(name):
        return NARROWER[layer]
    if layer not in ORDER:
        return NARROWER[layer]
    # A test may build the world below its folder.
    below = set(ORDER[: ORDER.index(layer) + 1])
    return below | {"text"} if layer == "serve" else below


def way_to(start, is_goal, next_of):
    """The shortest way from `start` to the first goal after it, both included; None without one."""
    came_from = {start: None}
    queue = collections.deque([start])
    while queue:
        node = queue.popleft()
        for after in next_of(node):
            if is_goal(after):
                way = [after]
                while node is not None:
                    way.append(node)
                    node = came_from[node]
                return way[::-1]
            if after not in came_from:
                came_from[after] = node
                queue.append(after)
    return None


def problem_with(name, include, files):
    """The rule that this include breaks by itself, or None."""
    layer = layer_of(name)
    if include.angled:
        if layer not in INSTALLED_LIBRARIES_ALLOWED and INSTALLED_LIBRARIES.match(include.angled):
            return f"{layer}/ builds with header-only libraries alone; <{include.angled}> belongs in serve/ or sources/"
        # A header under testing/ is seen by a few tests alone, which need what it includes.
        if name.endswith((".h", ".cuh")) and "/testing/" not in name and HEAVY.match(include.angled):
            return f"<{include.angled}> compiles slowly: include it in a .cc file, behind a header of ours"
        if MESSAGES.match(include.angled) and not name.startswith(tuple(f"{folder}/" for folder in MESSAGES_ALLOWED)):
            return f"<{include.angled}> is seen by {', '.join(MESSAGES_ALLOWED)} only"
        return None
    quoted = include.quoted
    if quoted in OUTSIDE:
        return None if layer in OUTSIDE[quoted] else f'"{quoted}" is seen by {", ".join(OUTSIDE[quoted])} only'
    if quoted not in files:
        return f'"{quoted}" is no path from src/ (a library is included with <>)'
    target = layer_of(quoted)
    if target in visible_from(name):
        return None
    if layer in NARROWER:
        return f"{layer}/ sees only {', '.join(sorted(NARROWER[layer]))}, not {target}/"
    return f"{layer}/ may not see {target}/: the order is {' < '.join(ORDER)}; text/ is seen by serve/ and apps/, sources/ by apps/"


def pulled_in(name, include, files):
    """The chain by which this include shows a narrower folder what it may not see, or None."""
    layer, first = layer_of(name), include.quoted
    if layer not in NARROWER or is_test(name) or first not in files:
        return None
    visible = NARROWER[layer]
    # Includes of other files of the folder are reported there; forbidden direct includes are reported already.
    if layer_of(first) not in visible or (layer_of(first) == layer and not is_test(first)):
        return None
    chain = way_to(
        first,
        lambda header: layer_of(header) not in visible,
        lambda header: [inner.quoted for inner in files[header] if inner.quoted in files],
    )
    return chain and f"{layer}/ sees no {layer_of(chain[-1])}/, nor through others: {' -> '.join([name] + chain)}"


def arrows_between(files, node_of, counts):
    """Node -> node -> the includes that lead there. `counts` says which pairs of files are looked at."""
    arrows = {}
    for name, includes in files.items():
        for include in includes:
            target = include.quoted
            if target in files and counts(name, target) and node_of(name) != node_of(target):
                leads = arrows.setdefault(node_of(name), {}).setdefault(node_of(target), [])
                leads.append(f"{name}:{include.line} includes {target}")
    return arrows


def circles_of(kind, arrows):
    """Yields a line for each circle, and below it the includes behind each of its arrows."""
    # A node without edges, or with edges only to such nodes, is in no circle.
    while ends := {node for node in arrows if not arrows[node].keys() & arrows.keys()}:
        arrows = {node: arrows[node] for node in arrows.keys() - ends}
    told = set()
    for node in sorted(arrows):
        way = way_to(node, lambda after: after == node, lambda other: sorted(arrows.get(other, ())))
        if way is None or frozenset(way) in told:
            continue
        told.add(frozenset(way))
        lines = [f"src/{node}:1: a circle of {kind}: {' -> '.join(way)}"]
        for start, end in zip(way, way[1:]):
            leads = arrows[start][end]
            more = f", and {len(leads) - 3} more" if len(leads) > 3 else ""
            lines.append(f"    {start} -> {end}: {', '.join(leads[:3])}{more}")
        yield "\n".join(lines)


def check(root):
    """Yields the report of each violation."""
    files = read_includes(root)
    for name, includes in files.items():
        if layer_of(name) not in ORDER and layer_of(name) not in NARROWER:
            yield f"src/{name}:1: {layer_of(name)} is no layer; the order is {' < '.join(ORDER)}, and {', '.join(sorted(NARROWER.keys() - set(ORDER)))}"
            continue
        for include in includes:
            problem = problem_with(name, include, files) or pulled_in(name, include, files)
            if problem:
                yield f"src/{name}:{include.line}: {problem}"

    def of_the_program(name, target):
        return not is_test(name) and not is_test(target)

    def within_a_module(name, target):
        return of_the_program(name, target) and layer_of(name) == layer_of(target)

    yield from circles_of("modules", arrows_between(files, layer_of, of_the_program))
    yield from circles_of("folders", arrows_between(files, folder_of, within_a_module))
    yield from circles_of("files", arrows_between(files, lambda name: name, lambda name, target: True))


# A file, its lines, and how the report about one of them begins; None where all are allowed.
PLANTED = [
    ("base/a.h", "#include <vector>", None),
    ("base/upward.cc", '#include "tensor/t.h"', "base/ may not see tensor/"),
    ("tensor/t.h", '#include "base/a.h"', None),
    ("model/m.h", '#include "tensor/t.h"', None),
    ("model/upward.cc", '# include "runtime/r.h"', "model/ may not see runtime/"),
    ("runtime/r.h", '#include "base/a.h"', None),
    ("runtime/text_user.cc", '#include "text/x.h"', "runtime/ may not see text/"),
    ("text/x.h", '#include "base/a.h"', None),
    ("text/too_much.cc", '#include "runtime/r.h"', "text/ sees only base, text, not runtime/"),
    ("text/crate.cc", '#include "tandem_text.h"', None),
    ("serve/crate.cc", '#include "tandem_text.h"', '"tandem_text.h" is seen by text only'),
    ("serve/s.h", '#include "runtime/r.h"', None),
    ("serve/s.cc", '#include "text/x.h"', None),
    ("serve/insides.cc", '#include "tensor/t.h"', "serve/ sees only base, runtime, serve, text, not tensor/"),
    ("serve/service_test.cc", '#include "tensor/t.h"', None),
    ("serve/backwards_test.cc", '#include "apps/p.h"', "serve/ sees only"),
    ("serve/http/deep.cc", '#include "ops/o.h"', "serve/ sees only"),
    ("sources/f.h", '#include "base/a.h"', None),
    ("sources/f.cc", '#include "sources/f.h"\n#include <archive.h>\n#include <curl/curl.h>', None),
    ("sources/too_much.cc", '#include "model/m.h"', "sources/ sees only base, sources, not model/"),
    ("sources/f_test.cc", '#include "model/m.h"', "sources/ sees only base, sources, not model/"),
    ("serve/fetches.cc", '#include "sources/f.h"', "serve/ sees only base, runtime, serve, text, not sources/"),
    ("engine_folder/unpacks.cc", "#include <archive_entry.h>", "engine_folder/ builds with header-only libraries"),
    ("apps/fetches.cc", '#include "sources/f.h"', None),
    ("apps/p.h", '#include "ops/o.h"', None),
    ("apps/q.cc", '#include "text/x.h"', None),
    ("ops/o.h", '#include "base/missing.h"', '"base/missing.h" is no path from src/'),
    ("ops/cpu/relative.cc", '#include "o.h"', '"o.h" is no path from src/'),
    ("ops/boost.cc", "#include <boost/json.hpp>", "ops/ builds with header-only libraries alone"),
    ("ops/heavy.h", "#include <nlohmann/json.hpp>", "<nlohmann/json.hpp> compiles slowly"),
    ("ops/heavy.cc", "#include <nlohmann/json.hpp>", None),
    ("serve/kserve/config.cc", "#include <model_config.pb.h>", None),
    ("serve/kserve/config.h", "#include <model_config.pb.h>", "<model_config.pb.h> compiles slowly"),
    ("serve/kserve/testing/fixture.h", "#include <model_config.pb.h>", None),
    ("serve/openai/config.cc", "#include <model_config.pb.h>", "<model_config.pb.h> is seen by serve/kserve"),
    ("util/u.h", "#include <vector>", "util is no layer"),
    # Forbidden for serve, through allowed headers: reported where serve leaves its folder.
    ("runtime/plan/heavy.h", '#include "base/a.h"\n#include "model/m.h"', None),
    ("runtime/door.h", '#include "runtime/plan/heavy.h"', None),
    (
        "serve/through.h",
        '#include "serve/s.h"\n#include "runtime/door.h"',
        "serve/ sees no model/, nor through others: "
        "serve/through.h -> runtime/door.h -> runtime/plan/heavy.h -> model/m.h",
    ),
    ("serve/told_there.cc", '#include "serve/through.h"', None),
    ("serve/testing/world.h", '#include "tensor/t.h"', None),
    ("serve/world_user.cc", '#include "serve/testing/world.h"', "serve/ sees no tensor/, nor through others"),
    ("serve/through_test.cc", '#include "runtime/door.h"', None),
    ("apps/all.cc", '#include "runtime/door.h"', None),
    ("model/top.cc", '#include "model/blocks/b.h"', None),
    ("model/blocks/b.h", '#include "model/m.h"', None),
    ("runtime/cache/c.h", '#include "runtime/request/q.h"', None),
    ("runtime/request/q.h", '#include "runtime/queue/i.h"', None),
    ("runtime/queue/i.h", "#include <vector>", None),
    ("runtime/queue/j.cc", '#include "runtime/cache/c.h"', None),
    ("ops/round.h", '#include "ops/rules.h"', None),
    ("ops/rules.h", '#include "ops/round.h"', None),
    # Tests make no circle of folders.
    ("ops/cpu/k.h", '#include "ops/round.h"', None),
    ("ops/round_test.cc", '#include "ops/cpu/k.h"', None),
    ("ops/testing/t.h", '#include "ops/cpu/k.h"', None),
]

# The circles in it: each include upwards makes one of modules where there is one downwards too.
PLANTED_CIRCLES = [
    "src/base:1: a circle of modules: base -> tensor -> base",
    "src/model:1: a circle of modules: model -> runtime -> model",
    "src/text:1: a circle of modules: text -> runtime -> text",
    "src/model:1: a circle of folders: model -> model/blocks -> model",
    "src/runtime/cache:1: a circle of folders: runtime/cache -> runtime/request -> runtime/queue -> runtime/cache",
    "src/ops/round.h:1: a circle of files: ops/round.h -> ops/rules.h -> ops/round.h",
]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text, _ in PLANTED:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text + "\n", encoding="utf-8")
        reports = [report.splitlines()[0] for report in check(root)]
    circles = [report for report in reports if ": a circle of " in report]
    others = [report for report in reports if report not in circles]
    wrong = [f"not planted: {circle}" for circle in circles if circle not in PLANTED_CIRCLES]
    wrong += [f"not found: {circle}" for circle in PLANTED_CIRCLES if circle not in circles]
    for name, _, beginning in PLANTED:
        told = [report.split(": ", 1)[1] for report in others if report.startswith(f"src/{name}:")]
        expected = [beginning] if beginning else []
        if len(told) != len(expected) or not all(map(str.startswith, told, expected)):
            wrong.append(f"{name}: expected {expected}, reported {told}")
    print("\n".join(wrong) if wrong else "check_layers: reports what is planted and nothing else")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "src").resolve()
    problems = list(check(root))
    print("\n".join(problems) if problems else "layers: every include follows the order, and there is no circle")
    return 1 if problems else 0


sys.exit(main())
