#!/usr/bin/env python3
"""Measures Tandem on a GPU machine and writes a table as JSON and as Markdown, each figure with its limit.

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

HERE = pathlib.Path(__file__).resolve().parent
FP8 = ["--weights", "fp8", "--kv_cache_dtype", "fp8"]
PLAIN = ["--no_draft"]


def shape(name):
    return str(HERE / "configs" / f"{name}.json")


def dummy(name):
    return ["--dummy", shape(name)]


def latency():
    """(title, arguments, goals) of each run; a goal is (the row's figure, the row, the value)."""
    short = ["--input_len", "1024", "--output_len", "128", "--runs", "2", "--cached_prompts", "--max_seq_len", "2048",
             "--max_num_tokens", "8192"]
    for title, model, kept, batches, goal in [
        ("Llama-3.1-8B bf16", "llama-3.1-8b", [], "1,4,16,64", 255),
        ("Llama-3.1-8B fp8", "llama-3.1-8b", FP8, "1,4,16,64,256", 470),
        ("Llama-3.2-1B bf16", "llama-3.2-1b", [], "1,4,16,64", None),
        ("Llama-3.2-1B fp8", "llama-3.2-1b", FP8, "1,4,16,64", 2100),
        ("Llama-3.3-70B fp8", "llama-3.3-70b", FP8, "1,4,16,64", 55),
    ]:
        slots = ["--max_batch_size", "256"] if "256" in batches else []
        goals = [("plain_tokens_per_s", {"batch": 1}, goal)] if goal else []
        yield title, ["latency", *dummy(model), *kept, *PLAIN, "--batch", batches, *slots, *short], goals
    long = ["--input_len", "2048", "--output_len", "128", "--runs", "2", "--cached_prompts", "--max_seq_len", "4096",
            "--max_num_tokens", "8192"]
    for title, model, batches, goals in [
        ("Llama-3.1-8B fp8, 2k context", "llama-3.1-8b", "16", {16: 5800}),
        ("Llama-3.3-70B fp8, 2k context", "llama-3.3-70b", "1,16", {1: 55, 16: 830}),
    ]:
        yield title, ["latency", *dummy(model), *FP8, *PLAIN, "--batch", batches, *long], [
            ("plain_tokens_per_s", {"batch": batch}, goal) for batch, goal in goals.items()]
    yield "Llama-3.1-8B fp8, long contexts", [
        "latency", *dummy("llama-3.1-8b"), *FP8, *PLAIN, "--batch", "1,4", "--input_len", "4096,16384,65536", "--output_len", "64",
        "--num_requests", "4", "--runs", "2", "--cached_prompts", "--max_seq_len", "70000", "--max_num_tokens", "8192"], []
    yield "Ops of Llama-3.1-8B, bf16", ["ops", *dummy("llama-3.1-8b")], []
    yield "Ops of Llama-3.1-8B, fp8", ["ops", *dummy("llama-3.1-8b"), *FP8], []


def throughput():
    for model, name, input_len, output_len, slots, goal in [
        ("llama-3.1-8b", "Llama-3.1-8B", 128, 2048, 512, 30000),
        ("llama-3.1-8b", "Llama-3.1-8B", 1000, 1000, 384, 20000),
        ("llama-3.3-70b", "Llama-3.3-70B", 128, 2048, 192, 5000),
    ]:
        yield f"{name} fp8, {input_len} in, {output_len} out", [
            "throughput", *dummy(model), *FP8, *PLAIN, "--max_batch_size", str(slots), "--num_requests", str(slots * 4),
            "--input_len", str(input_len), "--output_len", str(output_len), "--window", "30", "--max_seq_len", "4096",
            "--max_num_tokens", "8192"], [("output_tokens_per_s", {"mode": "plain"}, goal)]
    yield "Llama-3.1-8B fp8, one wave of 1024, 128 in, 2048 out", [
        "throughput", *dummy("llama-3.1-8b"), *FP8, *PLAIN, "--max_batch_size", "512", "--num_requests", "1024", "--input_len", "128",
        "--output_len", "2048", "--max_seq_len", "4096", "--max_num_tokens", "8192"], [
            ("output_tokens_per_s", {"mode": "plain"}, 30000)]


def speculation():
    draft = ["--draft_dummy", shape("llama-3.2-1b")]
    common = [*FP8, "--output_len", "96", "--runs", "1", "--max_seq_len", "2048", "--max_num_tokens", "8192"]
    yield "Llama-3.3-70B + 1B, fp8", [
        "speculative", *dummy("llama-3.3-70b"), *draft, *common, "--batch", "1,4,16,64", "--input_len", "512",
        "--acceptances", "0.6,0.85", "--draft_lens", "0,4"], [
            ("draft_tokens_per_s", {"batch": 1, "agreement": 0.85, "draft_len": 0}, 230),
            ("draft_tokens_per_s", {"batch": 16, "agreement": 0.85, "draft_len": 0}, 2200)]
    yield "Llama-3.1-8B + 1B, fp8", [
        "speculative", *dummy("llama-3.1-8b"), *draft, *common, "--batch", "1,16,64,256", "--max_batch_size", "256",
        "--input_len", "1024", "--acceptances", "0.85", "--draft_lens", "0"], []
    # What a start measures decides what pays, so one start says little.
    for start in range(1, 5):
        yield f"Llama-3.1-8B + 1B, fp8, 16 sequences, start {start}", [
            "speculative", *dummy("llama-3.1-8b"), *draft, *common, "--batch", "16", "--input_len", "1024", "--acceptances", "0.85",
            "--draft_lens", "0"], [("speedup", {"batch": 16}, 1.3)]
    yield "First token, Llama-3.1-8B fp8", [
        "ttft", *dummy("llama-3.1-8b"), *FP8, "--input_len", "1024,4096,8192,32768,65536", "--runs", "2", "--max_seq_len",
        "70000", "--max_num_tokens", "8192"], [("cold_s", {"prompt_tokens": 32768}, 0.85), ("cached_s", {"prompt_tokens": 32768}, 0.01)]


def smoke(runs):
    """The same runs over the embedded pair's shapes, with a small load."""
    pair = HERE.parent / "models" / "dictionary"
    small = {"--batch": "1,2", "--input_len": "32", "--output_len": "8", "--runs": "1", "--num_requests": "2000",
             "--max_batch_size": "4", "--window": "1", "--max_seq_len": "512", "--max_num_tokens": "512", "--draft_lens": "0,2",
             "--acceptances": "0.85", "--dummy": str(pair / "target" / "config.json"),
             "--draft_dummy": str(pair / "draft" / "config.json")}
    for title, arguments, goals in runs:
        kept = [arguments[0], "--device", "cpu"]
        for option, value in zip(arguments[1:], [*arguments[2:], ""]):
            if option in small:
                kept += [option, small[option]]
            elif option in ("--no_draft", "--cached_prompts"):
                kept.append(option)
        yield title, kept, goals


def measure(tandem, arguments, goals):
    """The run's figures, or what went wrong."""
    started = time.monotonic()
    run = subprocess.run([tandem, "bench", *arguments, "--json"], capture_output=True, text=True, check=False)
    command = " ".join(["tandem", "bench", *arguments]).replace(f"{HERE.parent}/", "")
    result = {"command": command, "seconds": time.monotonic() - started}
    if run.returncode != 0:
        return {**result, "error": run.stderr.strip().splitlines()[-1:]}
    figures = json.loads(run.stdout)
    for figure, chosen, goal in goals:
        for row in rows_of(figures):
            if chosen.items() <= row.items():
                row["goal"] = goal
                more_is_better = figure.endswith("per_s") or figure == "speedup"
                row["of_goal"] = row[figure] / goal if more_is_better else goal / row[figure]
    return {**result, "figures": figures}


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
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no GPU"


def cell(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows):
    """Rows as Markdown; a column that says nothing is left out."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    keys = [key for key in keys if any(row.get(key) for row in rows)]
    yield "| " + " | ".join(keys) + " |"
    yield "|" + "---|" * len(keys)
    for row in rows:
        yield "| " + " | ".join(cell(row.get(key, "")) for key in keys) + " |"


def markdown(kind, version, results):
    yield f"# Tandem on a GPU: {kind}\n"
    yield f"{version}; {device()}. `bench/gpu.py {kind}`. share_of_*: of the physical limit measured in the same run; goal: what is aimed at.\n"
    for title, result in results:
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


def measured_before(folder, kind, version):
    """The runs that the folder has already, of the same version and device."""
    try:
        before = json.loads((folder / f"gpu-{kind}.json").read_text())
    except OSError:
        return {}
    return before["runs"] if (before["version"], before["device"]) == (version, device()) else {}


def write(folder, kind, version, results):
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"version": version, "device": device(), "runs": dict(results)}
    (folder / f"gpu-{kind}.json").write_text(json.dumps(figures, indent=1) + "\n")
    (folder / f"gpu-{kind}.md").write_text("\n".join(markdown(kind, version, results)) + "\n")


def main():
    kinds = {"latency": latency, "throughput": throughput, "speculation": speculation}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--tandem", default=str(HERE.parent / "build" / "release" / "tandem"))
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="the run of that title, or those with NAME in it")
    parser.add_argument("--list", action="store_true", help="print the titles and end")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    runs = list(kinds[options.kind]())
    order = [title for title, _, _ in runs]
    if options.only:
        wanted = set()
        for name in options.only:
            found = [title for title in order if title == name] or [title for title in order if name.lower() in title.lower()]
            if not found:
                parser.error(f"--only {name}: no title has that in it; --list prints them")
            wanted.update(found)
        runs = [run for run in runs if run[0] in wanted]
    if options.list:
        print("\n".join(title for title, _, _ in runs))
        return 0
    version = subprocess.run([options.tandem, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    results = measured_before(options.out, options.kind, version) if options.only else {}
    failed = False
    for title, arguments, goals in smoke(runs) if options.smoke else runs:
        results[title] = measure(options.tandem, arguments, goals)
        failed = failed or "error" in results[title]
        print(f"{title}: {results[title].get('error', 'measured')}, {results[title]['seconds']:.0f} s", flush=True)
        # What is measured stays if a later run is cut short.
        write(options.out, options.kind, version, [(title, results[title]) for title in order if title in results])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
