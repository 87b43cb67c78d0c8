#!/usr/bin/env python3
"""Measures Tandem on a GPU machine and writes tables as JSON and as Markdown: each figure beside what is aimed at, and its limit.

    bench/gpu.py {latency|throughput|speculation} [--tandem PATH] [--out DIR] [--only NAME]...

  latency      decoding by batch and context, and every op alone: each compared with the measured limit
  throughput   output tokens per second with every slot taken, and of one wave of requests from start to end
  speculation  plain and speculative decoding by batch, acceptance and draft length; time to first token

Each takes less than 8 minutes on one H200. --only measures the runs whose title is NAME, or contains it, and keeps what the
folder has of the others from the same version and device; --list prints the titles. Models are dummies of the shapes in
bench/configs, made on the device; every token is checked. --smoke measures a model of a few megabytes instead, to try the script
itself on any machine.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
FP8 = ["--weights", "fp8", "--kv_cache_dtype", "fp8"]
PLAIN = ["--no_draft"]


def shape(name):
    return str(HERE / "configs" / f"{name}.json")


def dummy(name):
    return ["--dummy", shape(name)]


class Aim(NamedTuple):
    """What a figure should reach on one H200. Seconds are to be at most this, everything else at least."""

    figure: str
    row: dict  # the row of the tables that it is in: some of its columns
    asked: float | None
    goal: float
    vllm: float | None = None  # vLLM 0.24 on such a GPU: bench/results/h200-2026-11.md


def decodes(batch, asked, goal, vllm=None):
    return Aim("plain_tokens_per_s", {"batch": batch}, asked, goal, vllm)


def latency():
    """(title, arguments, aims) of each run."""
    short = ["--input_len", "1024", "--output_len", "128", "--runs", "2", "--cached_prompts", "--max_seq_len", "2048",
             "--max_num_tokens", "8192"]
    for title, model, kept, batches, aims in [
        ("Llama-3.1-8B bf16", "llama-3.1-8b", [], "1,4,16,64", [decodes(1, 248, 255, 209)]),
        ("Llama-3.1-8B fp8", "llama-3.1-8b", FP8, "1,4,16,64,256", [decodes(1, 430, 470, 296), decodes(64, 12500, 16000)]),
        ("Llama-3.2-1B bf16", "llama-3.2-1b", [], "1,4,16,64", [decodes(1, 1250, 1450, 862)]),
        ("Llama-3.2-1B fp8", "llama-3.2-1b", FP8, "1,4,16,64", [decodes(1, None, 2100)]),
        ("Llama-3.3-70B fp8", "llama-3.3-70b", FP8, "1,4,16,64", [decodes(1, 54, 56)]),
    ]:
        slots = ["--max_batch_size", "256"] if "256" in batches else []
        yield title, ["latency", *dummy(model), *kept, *PLAIN, "--batch", batches, *slots, *short], aims
    long = ["--input_len", "2048", "--output_len", "128", "--runs", "2", "--cached_prompts", "--max_seq_len", "4096",
            "--max_num_tokens", "8192"]
    for title, model, batches, aims in [
        ("Llama-3.1-8B fp8, 2k context", "llama-3.1-8b", "16", [decodes(16, 5000, 5800, 3861)]),
        ("Llama-3.3-70B fp8, 2k context", "llama-3.3-70b", "1,16", [decodes(1, 52.5, 55), decodes(16, 780, 830, 715)]),
    ]:
        yield title, ["latency", *dummy(model), *FP8, *PLAIN, "--batch", batches, *long], aims
    yield "Llama-3.1-8B fp8, long contexts", [
        "latency", *dummy("llama-3.1-8b"), *FP8, *PLAIN, "--batch", "1,4", "--input_len", "4096,16384,65536", "--output_len", "64",
        "--num_requests", "4", "--runs", "2", "--cached_prompts", "--max_seq_len", "70000", "--max_num_tokens", "8192"], []
    yield "Ops of Llama-3.1-8B, bf16", ["ops", *dummy("llama-3.1-8b")], []
    yield "Ops of Llama-3.1-8B, fp8", ["ops", *dummy("llama-3.1-8b"), *FP8], []


def throughput():
    def emits(asked, goal, vllm):
        return [Aim("output_tokens_per_s", {"mode": "plain"}, asked, goal, vllm)]

    for model, name, input_len, output_len, slots, aims in [
        ("llama-3.1-8b", "Llama-3.1-8B", 128, 2048, 512, emits(26000, 30000, None)),
        ("llama-3.1-8b", "Llama-3.1-8B", 1000, 1000, 384, emits(17000, 20000, 14000)),
        ("llama-3.3-70b", "Llama-3.3-70B", 128, 2048, 192, emits(4200, 5000, 3550)),
    ]:
        yield f"{name} fp8, {input_len} in, {output_len} out", [
            "throughput", *dummy(model), *FP8, *PLAIN, "--max_batch_size", str(slots), "--num_requests", str(slots * 4),
            "--input_len", str(input_len), "--output_len", str(output_len), "--window", "30", "--max_seq_len", "4096",
            "--max_num_tokens", "8192"], aims
    yield "Llama-3.1-8B fp8, one wave of 1024, 128 in, 2048 out", [
        "throughput", *dummy("llama-3.1-8b"), *FP8, *PLAIN, "--max_batch_size", "512", "--num_requests", "1024", "--input_len", "128",
        "--output_len", "2048", "--max_seq_len", "4096", "--max_num_tokens", "8192"], emits(24000, 30000, 20285)


def speculation():
    draft = ["--draft_dummy", shape("llama-3.2-1b")]
    common = [*FP8, "--output_len", "96", "--runs", "1", "--max_seq_len", "2048", "--max_num_tokens", "8192"]

    def drafted(batch, asked, goal, vllm):
        return Aim("draft_tokens_per_s", {"batch": batch, "agreement": 0.85, "draft_len": 0}, asked, goal, vllm)

    yield "Llama-3.3-70B + 1B, fp8", [
        "speculative", *dummy("llama-3.3-70b"), *draft, *common, "--batch", "1,4,16,64", "--input_len", "512",
        "--acceptances", "0.6,0.85", "--draft_lens", "0,4"], [drafted(1, 215, 230, 135), drafted(16, 2200, 2450, 1560)]
    yield "Llama-3.1-8B + 1B, fp8", [
        "speculative", *dummy("llama-3.1-8b"), *draft, *common, "--batch", "1,16,64,256", "--max_batch_size", "256",
        "--input_len", "1024", "--acceptances", "0.85", "--draft_lens", "0"], [
            Aim("speedup", {"batch": batch}, 0.98, 1.0) for batch in (64, 256)]
    # What a start measures decides what pays, so one start says little.
    for start in range(1, 5):
        yield f"Llama-3.1-8B + 1B, fp8, 16 sequences, start {start}", [
            "speculative", *dummy("llama-3.1-8b"), *draft, *common, "--batch", "16", "--input_len", "1024", "--acceptances", "0.85",
            "--draft_lens", "0"], [Aim("speedup", {"batch": 16}, 1.2, 1.3)]
    yield "First token, Llama-3.1-8B fp8", [
        "ttft", *dummy("llama-3.1-8b"), *FP8, "--input_len", "1024,4096,8192,32768,65536", "--runs", "2", "--max_seq_len",
        "70000", "--max_num_tokens", "8192"], [
            Aim("cold_s", {"prompt_tokens": 8192}, 0.125, 0.12, 0.145), Aim("cold_s", {"prompt_tokens": 32768}, 0.88, 0.85, 0.92),
            Aim("cached_s", {"prompt_tokens": 32768}, None, 0.01)]


def smoke(runs):
    """The same runs over the embedded pair's shapes, with a small load."""
    pair = HERE.parent / "models" / "dictionary"
    small = {"--batch": "1,2", "--input_len": "32", "--output_len": "8", "--runs": "1", "--num_requests": "2000",
             "--max_batch_size": "4", "--window": "1", "--max_seq_len": "512", "--max_num_tokens": "512", "--draft_lens": "0,2",
             "--acceptances": "0.85", "--dummy": str(pair / "target" / "config.json"),
             "--draft_dummy": str(pair / "draft" / "config.json")}
    for title, arguments, aims in runs:
        kept = [arguments[0], "--device", "cpu"]
        for option, value in zip(arguments[1:], [*arguments[2:], ""]):
            if option in small:
                kept += [option, small[option]]
            elif option in ("--no_draft", "--cached_prompts"):
                kept.append(option)
        yield title, kept, aims


def measure(tandem, arguments):
    """The run's figures, or what went wrong."""
    started = time.monotonic()
    run = subprocess.run([tandem, "bench", *arguments, "--json"], capture_output=True, text=True, check=False)
    command = " ".join(["tandem", "bench", *arguments]).replace(f"{HERE.parent}/", "")
    result = {"command": command, "seconds": time.monotonic() - started}
    if run.returncode != 0:
        return {**result, "error": run.stderr.strip().splitlines()[-1:]}
    return {**result, "figures": json.loads(run.stdout)}


def tables_of(figures):
    """Each table's rows: the lists of the figures, and their objects as one table."""
    modes = [value for value in figures.values() if isinstance(value, dict)]
    for mode, value in figures.items():
        if isinstance(value, dict):
            value["mode"] = mode
    return [value for value in figures.values() if isinstance(value, list)] + ([modes] if modes else [])


def rows_of(figures):
    return [row for rows in tables_of(figures) for row in rows]


def device():
    """The GPUs, or None."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def cell(value):
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows):
    """Rows as Markdown, without columns that say nothing and lists in cells."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    keys = [key for key in keys if any(row.get(key) and not isinstance(row[key], list) for row in rows)]
    yield "| " + " | ".join(keys) + " |"
    yield "|" + "---|" * len(keys)
    for row in rows:
        yield "| " + " | ".join(cell(row.get(key, "")) for key in keys) + " |"


def aims_of(title, aims, figures):
    """The rows of the table of aims that a run measured."""
    for aim in aims:
        for row in rows_of(figures):
            if aim.row.items() <= row.items():
                where = ", ".join(f"{key} {value}" for key, value in aim.row.items())
                yield {"run": f"{title}: {where}", "figure": aim.figure, "measured": row[aim.figure],
                       "vLLM 0.24": aim.vllm, "asked": aim.asked, "goal": aim.goal}


def markdown(kind, origin, runs, results):
    yield f"# Tandem on a GPU: {kind}\n"
    yield f"{origin}. `bench/gpu.py {kind}`. share_of_*: of the physical limit measured in the same run.\n"
    aims = [row for title, _, aimed in runs for row in aims_of(title, aimed, results.get(title, {}).get("figures", {}))]
    if aims:
        yield "asked: of an H200, at least, or in seconds at most; goal: what is aimed at.\n"
        yield from table(aims)
        yield ""
    for title, result in results.items():
        yield f"## {title}\n"
        yield f"`{result['command']}` ({result['seconds']:.0f} s)\n"
        if "error" in result:
            yield f"FAILED: {' '.join(result['error'])}\n"
            continue
        figures = result["figures"]
        single = {key: value for key, value in figures.items() if not isinstance(value, (list, dict))}
        yield ", ".join(f"{key} {cell(value)}" for key, value in single.items()) + "\n"
        for rows in tables_of(figures):
            yield from table(rows)
            yield ""


def measured_before(path, origin):
    """The runs that the file has already, of the same version and device."""
    if not path.exists():
        return {}
    try:
        before = json.loads(path.read_text())
        if before["origin"] == origin:
            return before["runs"]
        what = f"its runs are of {before['origin']}"
    except (ValueError, KeyError, TypeError):
        what = "it holds no runs of this script"
    print(f"{path}: {what}; it is replaced", file=sys.stderr)
    return {}


def main():
    kinds = {"latency": latency, "throughput": throughput, "speculation": speculation}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=kinds)
    parser.add_argument("--tandem", default=str(HERE.parent / "build" / "release" / "tandem"), help="default: build/release/tandem")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "build" / "bench", help="default: build/bench")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="the run of that title, or those with NAME in it")
    parser.add_argument("--list", action="store_true", help="print the titles and end")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU, for seconds; its figures mean nothing")
    options = parser.parse_args()
    if options.kind is None:
        if not options.list:
            parser.error(f"name what to measure: {', '.join(kinds)}")
        print("\n".join(f"{kind}: {title}" for kind, runs in kinds.items() for title, _, _ in runs()))
        return 0
    every_run = list(kinds[options.kind]())
    runs = every_run
    if options.only:
        wanted = set()
        for name in options.only:
            titles = [title for title, _, _ in runs]
            found = [title for title in titles if title == name] or [title for title in titles if name.lower() in title.lower()]
            if not found:
                parser.error(f"--only {name}: no title has that in it; --list prints them")
            wanted.update(found)
        runs = [run for run in runs if run[0] in wanted]
    if options.list:
        print("\n".join(title for title, _, _ in runs))
        return 0
    try:
        version = subprocess.run([options.tandem, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        options.out.mkdir(parents=True, exist_ok=True)
    except (OSError, subprocess.CalledProcessError) as error:
        parser.error(f"{error}; --tandem names the program, --out the folder of the tables")
    gpu = device()
    if gpu is None and not options.smoke:
        parser.error("no NVIDIA GPU here; --smoke tries the script on any machine")
    origin = f"{version}; {'SMOKE: a tiny model on the CPU, whose figures mean nothing' if options.smoke else gpu}"
    path = options.out / f"gpu-{options.kind}.json"
    results = measured_before(path, origin) if options.only else {}
    failed = False
    for title, arguments, _ in smoke(runs) if options.smoke else runs:
        results[title] = measure(options.tandem, arguments)
        failed = failed or "error" in results[title]
        print(f"{title}: {results[title].get('error', 'measured')}, {results[title]['seconds']:.0f} s", flush=True)
        # What is measured stays if a later run is cut short.
        results = {title: results[title] for title, _, _ in every_run if title in results}
        path.write_text(json.dumps({"origin": origin, "runs": results}, indent=1) + "\n")
        aimed = [] if options.smoke else every_run
        path.with_suffix(".md").write_text("\n".join(markdown(options.kind, origin, aimed, results)) + "\n")
    print(f"tables: {path.with_suffix('.md')}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
