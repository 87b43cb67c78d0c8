#!/usr/bin/env python3
"""Measures the model tensorrt_llm without the ensemble: latencies and throughput of many requests.

    benchmark_core_model.py --max-input-len 300 --num-requests 500 token-norm-dist \\
        --input-mean 128 --input-stdev 5 --output-mean 20 --output-stdev 2

With --request-rate -1 each of --concurrency connections sends its next request as soon as it has an answer.
"""

import csv
import json
import time

import load
import numpy as np
from tritonclient.utils import InferenceServerException

from kserve_client import Client, Parser, given, run, tokenize

WARM_UP_REQUESTS, WARM_UP_TOKENS = 10, 100
# Lengths in tokens and how often they occur, for token-from-histogram.
HISTOGRAMS = {
    "example": {
        "input": {"16": 175, "48": 228, "80": 190, "112": 127, "240": 96, "496": 42, "1008": 8},
        "output": {"16": 120, "48": 210, "112": 320, "240": 180, "496": 40},
    }
}


def make_parser():
    parser = Parser(description=__doc__)
    load.add_server_flags(parser)
    add = parser.add_argument
    add("--max-input-len", type=int, required=True, help="longer prompts are skipped or cut")
    add("--tensorrt-llm-model-name", default="tensorrt_llm")
    add("--decoupled", action="store_true", help="the model is decoupled: ask it by streams")
    add("--num-requests", type=int, default=30000, help="most requests")
    add("--request-rate", type=float, default=-1, help="requests a second; -1: as fast as they are answered")
    add("--time-delay-dist", choices=["constant", "exponential_dist"], default="exponential_dist")
    add("--exclude-input-in-output", action="store_true")
    add("--seed", type=int, default=420)
    add("--tokenizer-dir", help="without effect: the server's model preprocessing tokenizes")
    add("--tokenizer-type", help="without effect")
    add("--op-stats-csv", help="write a line for each request to this file")
    add("--dump-perfetto-trace", action="store_true", help="write trace.json for a viewer of Chrome's traces")
    add("--check-perf-json", help="file with expected latencies by key, in ms, for --check-perf-key")
    add("--check-perf-key", help="fail unless the total latency is the one of this key")
    add("--check-perf-atol", type=float, default=0, help="tolerance in ms")
    add("--check-perf-rtol", type=float, default=0.05, help="tolerance as a share")
    prompts = parser.add_subparsers(dest="workload", required=True)
    dataset = prompts.add_parser("dataset", help="prompts of a JSON file")
    dataset.add_argument("--dataset", required=True)
    dataset.add_argument("--op-tokens-per-word", type=float, default=1.3)
    normal = prompts.add_parser("token-norm-dist", help="random tokens, normally distributed lengths")
    for side in ("input", "output"):
        normal.add_argument(f"--{side}-mean", type=float, required=True)
        normal.add_argument(f"--{side}-stdev", type=float, required=True)
    histogram = prompts.add_parser("token-from-histogram", help="random tokens, lengths from a histogram")
    histogram.add_argument(
        "--histogram-key",
        default="example",
        help='"example", or a JSON file with "input" and "output": {length: count}',
    )
    return parser


def random_tokens(rng, length):
    """Tokens that are in every vocabulary; the server refuses others."""
    return rng.integers(3, 1000, length).tolist()


def normal_lengths(rng, mean, stdev, count):
    return np.maximum(1, np.rint(rng.normal(mean, stdev, count))).astype(int)


def histogram_lengths(rng, counts, count):
    weights = np.array(list(counts.values()), float)
    return rng.choice([int(length) for length in counts], count, p=weights / weights.sum())


def workload(options, client):
    """(tokens of the prompt, tokens of the answer) of each request."""
    rng = np.random.default_rng(options.seed)
    if options.workload == "dataset":
        made = []
        for prompt in load.read_dataset(options.dataset, options.op_tokens_per_word)[: options.num_requests]:
            tokens = tokenize(client, [prompt.text], prompt.max_tokens)["INPUT_ID"][0].tolist()
            if len(tokens) <= options.max_input_len:
                made.append((tokens, prompt.max_tokens))
        return made
    count = options.num_requests
    if options.workload == "token-norm-dist":
        inputs = normal_lengths(rng, options.input_mean, options.input_stdev, count)
        outputs = normal_lengths(rng, options.output_mean, options.output_stdev, count)
    else:
        if options.histogram_key in HISTOGRAMS:
            histogram = HISTOGRAMS[options.histogram_key]
        else:
            with open(options.histogram_key, encoding="utf-8") as file:
                histogram = json.load(file)
        inputs = histogram_lengths(rng, histogram["input"], count)
        outputs = histogram_lengths(rng, histogram["output"], count)
    inputs = np.minimum(inputs, options.max_input_len)
    return [(random_tokens(rng, length), int(output)) for length, output in zip(inputs, outputs)]


def request_of(options, tokens, max_tokens, integer):
    return {
        "input_ids": np.array([tokens], integer),
        **given(
            input_lengths=(len(tokens), integer),
            request_output_len=(max_tokens, integer),
            pad_id=(0, integer),
            end_id=(1, integer),
            exclude_input_in_output=(options.exclude_input_in_output or None, bool),
            streaming=(True if options.decoupled else None, bool),
        ),
    }


def ask(client, options, number, tokens, max_tokens, integer):
    """The count of new tokens of one request."""
    tensors = request_of(options, tokens, max_tokens, integer)
    if options.decoupled:
        answers = client.stream_infer(options.tensorrt_llm_model_name, tensors, request_id=str(number))
    else:
        answers = [client.infer(options.tensorrt_llm_model_name, tensors, request_id=str(number))]
    count = 0
    for answer in answers:
        name, ids = next(iter(answer.tensors.items()))
        if name != "output_ids" or ids.ndim != 3 or answer.id != str(number):
            raise InferenceServerException(
                f"request {number}: expected its id and output_ids of three dimensions first, got id {answer.id!r} and "
                f"{name} of shape {ids.shape}"
            )
        count += ids.shape[2]
    echoed = 0 if options.decoupled or options.exclude_input_in_output else len(tokens)
    return count - echoed


def send_all(options, requests, pool, integer):
    """The futures of all requests, each sent at its time."""
    rng = np.random.default_rng(options.seed)
    futures, due = [], time.perf_counter()
    for number, (tokens, max_tokens) in enumerate(requests):
        futures.append(pool.submit(ask, options, number, tokens, max_tokens, integer))
        if options.request_rate > 0:
            pause = 1 / options.request_rate
            due += pause if options.time_delay_dist == "constant" else rng.exponential(pause)
            time.sleep(max(0, due - time.perf_counter()))
    return futures


def report(requests, results, begin):
    """Prints the table; returns the time from the first request to the last answer, in ms."""
    latencies = np.array([1000 * (end - start) for _, start, end in results])
    total = 1000 * (max(end for _, _, end in results) - begin)
    made = sum(count for count, _, _ in results)
    rows = {
        "requests": len(results),
        "mean prompt (tokens)": np.mean([len(tokens) for tokens, _ in requests]),
        "mean answer (tokens)": made / len(results),
        "total latency (ms)": total,
        "mean latency (ms)": latencies.mean(),
        "p50 latency (ms)": np.percentile(latencies, 50),
        "p90 latency (ms)": np.percentile(latencies, 90),
        "p99 latency (ms)": np.percentile(latencies, 99),
        "throughput (requests/s)": 1000 * len(results) / total,
        "throughput (tokens/s)": 1000 * made / total,
    }
    for name, value in rows.items():
        print(f"{name:<24} {value:12.2f}" if isinstance(value, float) else f"{name:<24} {value:12}")
    return total


def write_files(options, requests, results, begin):
    def columns(number):
        count, start, end = results[number]
        return number, len(requests[number][0]), count, 1000 * (start - begin), 1000 * (end - start)

    if options.op_stats_csv:
        with open(options.op_stats_csv, "w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["request", "input_tokens", "output_tokens", "start_ms", "latency_ms"])
            lines.writerows(columns(number) for number in range(len(results)))
    if options.dump_perfetto_trace:
        events = [
            {"name": f"request {n}", "ph": "X", "ts": 1000 * start, "dur": 1000 * latency, "pid": 1, "tid": n}
            for n, _, _, start, latency in map(columns, range(len(results)))
        ]
        with open("trace.json", "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)


def check(options, total):
    if not options.check_perf_key:
        return 0
    with open(options.check_perf_json, encoding="utf-8") as file:
        expected = json.load(file)[options.check_perf_key]
    if abs(total - expected) <= options.check_perf_atol + options.check_perf_rtol * expected:
        return 0
    print(f"the total latency is {total:.1f} ms, expected {expected:.1f} ms")
    return 1


def main(arguments=None, integer=np.int32):
    options = make_parser().parse_args(arguments)
    url = load.url_of(options)
    with Client(url, options.protocol) as client:
        requests = workload(options, client)
        if not requests:
            print(f"no prompt has at most {options.max_input_len} tokens")
            return 1
        print("[INFO] Warm up for benchmarking.")
        for number in range(WARM_UP_REQUESTS):
            ask(client, options, number, requests[0][0], WARM_UP_TOKENS, integer)
    with load.Load(url, options.protocol, options.concurrency) as pool:
        print(f"[INFO] Start benchmarking on {len(requests)} prompts.")
        begin = time.perf_counter()
        results = [future.result() for future in send_all(options, requests, pool, integer)]
    total = report(requests, results, begin)
    write_files(options, requests, results, begin)
    return check(options, total)


if __name__ == "__main__":
    run(main)
