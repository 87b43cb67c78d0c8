#!/usr/bin/env python3
"""Measures Tandem on a GPU machine and writes a table: JSON beside Markdown, each figure with its limit.

    bench/gpu.py {latency|throughput|speculation} [--tandem PATH] [--out DIR]

  latency      decode by batch and context, every op alone: each beside the measured limit
  throughput   output tokens a second with every slot taken
  speculation  plain beside speculative decoding by batch, acceptance and draft length; time to first token

Each stays under 8 minutes on one H200. Models are dummies of the shapes in bench/configs, made on the device, whose every token
is checked. --smoke measures a model of a few megabytes instead, to try the script itself anywhere.
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
    """(title, arguments) of each run."""
    short = ["--batch", "1,4,16,64", "--input_len", "1024", "--output_len", "96", "--runs", "2"]
    for title, model, kept in [
        ("Llama-3.1-8B bf16", "llama-3.1-8b", []),
        ("Llama-3.1-8B fp8", "llama-3.1-8b", FP8),
        ("Llama-3.2-1B bf16", "llama-3.2-1b", []),
        ("Llama-3.3-70B fp8", "llama-3.3-70b", FP8),
    ]:
        yield title, ["latency", *dummy(model), *kept, *PLAIN, *short, "--max_seq_len", "2048", "--max_num_tokens", "8192"]
    yield "Llama-3.1-8B fp8, long contexts", [
        "latency", *dummy("llama-3.1-8b"), *FP8, *PLAIN, "--batch", "1,4", "--input_len", "4096,16384,65536", "--output_len", "64",
        "--num_requests", "4", "--runs", "1", "--max_seq_len", "70000", "--max_num_tokens", "8192"]
    yield "Ops of Llama-3.1-8B, bf16", ["ops", *dummy("llama-3.1-8b")]
    yield "Ops of Llama-3.1-8B, fp8", ["ops", *dummy("llama-3.1-8b"), *FP8]


def throughput():
    for input_len, output_len, slots in [(128, 2048, 512), (1000, 1000, 256)]:
        yield f"Llama-3.1-8B fp8, {input_len} in, {output_len} out", [
            "throughput", *dummy("llama-3.1-8b"), *FP8, *PLAIN, "--max_batch_size", str(slots), "--num_requests", str(slots * 2),
            "--input_len", str(input_len), "--output_len", str(output_len), "--max_seq_len", "4096", "--max_num_tokens", "8192"]


def speculation():
    draft = ["--draft_dummy", shape("llama-3.2-1b")]
    common = [*FP8, "--output_len", "96", "--runs", "2", "--max_seq_len", "2048", "--max_num_tokens", "8192"]
    yield "Llama-3.3-70B + 1B, fp8", [
        "speculative", *dummy("llama-3.3-70b"), *draft, *common, "--batch", "1,4,16,64", "--input_len", "512",
        "--acceptances", "0.6,0.85", "--draft_lens", "0,4,8"]
    yield "Llama-3.1-8B + 1B, fp8", [
        "speculative", *dummy("llama-3.1-8b"), *draft, *common, "--batch", "1,16,64,256", "--max_batch_size", "256",
        "--input_len", "1024", "--acceptances", "0.85", "--draft_lens", "0"]
    yield "First token, Llama-3.1-8B fp8", [
        "ttft", *dummy("llama-3.1-8b"), *FP8, "--input_len", "1024,4096,8192,32768,65536", "--runs", "2", "--max_seq_len",
        "70000", "--max_num_tokens", "8192"]


def smoke(runs):
    """The same runs over the embedded pair's shapes, with a small load."""
    pair = HERE.parent / "models" / "dictionary"
    small = {"--batch": "1,2", "--input_len": "32", "--output_len": "8", "--runs": "1", "--num_requests": "4",
             "--max_batch_size": "4", "--max_seq_len": "512", "--max_num_tokens": "512", "--draft_lens": "0,2",
             "--acceptances": "0.85", "--dummy": str(pair / "target" / "config.json"),
             "--draft_dummy": str(pair / "draft" / "config.json")}
    for title, arguments in runs:
        kept = [arguments[0], "--device", "cpu"]
        for option, value in zip(arguments[1:], [*arguments[2:], ""]):
            if option in small:
                kept += [option, small[option]]
            elif option == "--no_draft":
                kept.append(option)
        yield title, kept


def measure(tandem, arguments):
    """The run's figures, or what went wrong."""
    started = time.monotonic()
    run = subprocess.run([tandem, "bench", *arguments, "--json"], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    command = " ".join(["tandem", "bench", *arguments])
    if run.returncode != 0:
        return {"command": command, "seconds": seconds, "error": run.stderr.strip().splitlines()[-1:]}
    return {"command": command, "seconds": seconds, "figures": json.loads(run.stdout)}


def cell(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows):
    """Rows of equal keys as Markdown."""
    keys = list(rows[0])
    yield "| " + " | ".join(keys) + " |"
    yield "|" + "---|" * len(keys)
    for row in rows:
        yield "| " + " | ".join(cell(row.get(key, "")) for key in keys) + " |"


def markdown(kind, version, results):
    yield f"# Tandem on a GPU: {kind}\n"
    yield f"{version}\n"
    for title, result in results:
        yield f"## {title}\n"
        yield f"`{result['command']}` ({result['seconds']:.0f} s)\n"
        if "error" in result:
            yield f"FAILED: {' '.join(result['error'])}\n"
            continue
        figures = result["figures"]
        single = {key: value for key, value in figures.items() if not isinstance(value, (list, dict))}
        yield ", ".join(f"{key} {cell(value)}" for key, value in single.items()) + "\n"
        for key, value in figures.items():
            rows = value if isinstance(value, list) else [{"mode": key, **value}] if isinstance(value, dict) else []
            if rows:
                yield from table(rows)
                yield ""


def main():
    kinds = {"latency": latency, "throughput": throughput, "speculation": speculation}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--tandem", default=str(HERE.parent / "build" / "release" / "tandem"))
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    runs = kinds[options.kind]()
    results = []
    for title, arguments in smoke(runs) if options.smoke else runs:
        results.append((title, measure(options.tandem, arguments)))
        print(f"{title}: {results[-1][1].get('error', 'measured')}, {results[-1][1]['seconds']:.0f} s", flush=True)
    version = subprocess.run([options.tandem, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"gpu-{options.kind}.json").write_text(json.dumps({"version": version, "runs": dict(results)}, indent=1) + "\n")
    (options.out / f"gpu-{options.kind}.md").write_text("\n".join(markdown(options.kind, version, results)) + "\n")
    return 1 if any("error" in result for _, result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
