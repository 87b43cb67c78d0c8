#!/usr/bin/env python3
"""Starts Tandem several times and compares how fast each start decodes with a draft model, beside itself without one.

    bench/starts.py [--starts N] [--batch LIST] [--tandem PATH] [TARGET DRAFT] [-- ARGUMENT...]

The prices by which drafts are chosen are measured at every start; a start that measures them wrong must not stay slow. Each
start runs `tandem bench latency`, which decodes with and without the draft in turn, and a table shows the speedup of every
start, and by number of sequences the worst, the median and the best. Exits with 1 where a start is below --worst times plain
decoding or the median further from the best than --spread. Arguments after `--` go to `tandem bench latency`.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def measure(command):
    """{batch: speedup} of one start."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}: {done.stderr.strip()}")
    rows = json.loads(done.stdout)["rows"]
    if not all(row["draft_tokens_per_s"] for row in rows):
        sys.exit(f"{' '.join(command)}: decodes without a draft model, so there is nothing to compare")
    return {row["batch"]: row["speedup"] for row in rows}


def line(title, speedups):
    return f"{title:>8}" + "".join(f"  {speedup:8.2f}x" for speedup in speedups)


def main():
    arguments, more = sys.argv[1:], []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, more = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="target and draft; default: the embedded pair")
    parser.add_argument("--starts", type=int, default=10, help="default: 10")
    parser.add_argument("--batch", default="16,32", help="numbers of sequences, a comma-separated list; default: 16,32")
    parser.add_argument("--runs", type=int, default=3, help="of each way of decoding in a start; default: 3")
    parser.add_argument("--worst", type=float, default=0.98, help="least speedup of any start; default: 0.98")
    parser.add_argument("--spread", type=float, default=0.1, help="most that the median may lack of the best; default: 0.1")
    parser.add_argument("--tandem", default=str(ROOT / "build" / "release" / "tandem"), help="the program to measure")
    options = parser.parse_args(arguments)
    if options.starts < 1:
        parser.error("--starts must be at least 1")

    command = [options.tandem, "bench", "latency", *options.models, "--batch", options.batch]
    command += ["--runs", str(options.runs), "--json", *more]
    starts = []
    for number in range(1, options.starts + 1):
        starts.append(measure(command))
        if number == 1:
            print(f"{'start':>8}" + "".join(f"  {f'batch {batch}':>9}" for batch in starts[0]))
        print(line(number, starts[-1].values()), flush=True)

    missed = False
    columns = {batch: sorted(start[batch] for start in starts) for batch in starts[0]}
    worst = [column[0] for column in columns.values()]
    median = [statistics.median(column) for column in columns.values()]
    best = [column[-1] for column in columns.values()]
    for title, row in (("worst", worst), ("median", median), ("best", best)):
        print(line(title, row))
    for batch, low, middle, high in zip(columns, worst, median, best):
        if low < options.worst:
            print(f"batch {batch}: the worst start is below {options.worst} times plain decoding")
            missed = True
        if middle < (1 - options.spread) * high:
            print(f"batch {batch}: the median start is more than {options.spread:.0%} below the best")
            missed = True
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
