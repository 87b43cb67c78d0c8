#!/usr/bin/env python3
"""What the text stages cost: answers as text beside answers as tokens on one server, and beside `tandem bench throughput`, in turn.

    bench/stages.py [--concurrency N] [--tandem PATH] [TARGET DRAFT]

Every request asks for the same number of tokens and is answered whole, so that client and transport cost next to nothing. Each round
measures the engine alone, then text (ensemble), then tokens (tensorrt_llm). The table shows every round; the machine's own noise
shows in their spread. The share of processor time is that of the server while it answered text and tokens. Standard library only.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
import urllib.request

from doors import ROOT, Server

PROMPT = 'What does "tandem" mean?'


def bench(options):
    """Tokens a second of the engine, with or without the draft, whichever is faster."""
    command = [options.tandem, "bench", "throughput", *options.models, "--max_batch_size", str(options.concurrency)]
    command += ["--num_requests", str(options.concurrency * options.each), "--output_len", str(options.output_len)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}: {done.stderr.strip()}")
    return max(float(rate) for rate in re.findall(r"([\d.]+) output tok/s", done.stdout))


def prompt_tokens(port):
    inputs = [
        {"name": "QUERY", "shape": [1, 1], "datatype": "BYTES", "data": [PROMPT]},
        {"name": "REQUEST_OUTPUT_LEN", "shape": [1, 1], "datatype": "INT32", "data": [1]},
    ]
    body = json.dumps({"inputs": inputs}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/preprocessing/infer", body) as response:
        outputs = json.load(response)["outputs"]
    return next(output["data"] for output in outputs if output["name"] == "INPUT_ID")


async def ask(port, path, body, times):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            sys.exit(f"{path}: {head.decode()}")
        await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
    writer.close()


async def measure(server, path, body, options, times):
    """(tokens a second, the server's processor time in microseconds per token)"""
    used, begun = server.processor_seconds(), time.monotonic()
    await asyncio.gather(*(ask(server.ports["http"], path, body, times) for _ in range(options.concurrency)))
    tokens = options.concurrency * times * options.output_len
    return tokens / (time.monotonic() - begun), (server.processor_seconds() - used) / tokens * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="target and draft; default: the embedded pair")
    parser.add_argument("--concurrency", type=int, default=64, help="requests at a time; default: 64")
    parser.add_argument("--each", type=int, default=12, help="requests one after the other of each; default: 12")
    parser.add_argument("--output_len", type=int, default=64, help="default: 64")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--tandem", default=str(ROOT / "build" / "release" / "tandem"), help="the program to measure")
    options = parser.parse_args()
    batch = ["--max_batch_size", str(options.concurrency)]
    server = Server([options.tandem, "serve", *options.models, "--port", "0", "--grpc_port", "0", *batch])
    try:
        ids = prompt_tokens(server.ports["http"])
        length = options.output_len
        text = json.dumps({"text_input": PROMPT, "max_tokens": length, "min_length": length})
        tokens = json.dumps(
            {"input_ids": ids, "input_lengths": len(ids), "request_output_len": length, "min_length": length}
        )
        doors = {"text": ("/v2/models/ensemble/generate", text), "tokens": ("/v2/models/tensorrt_llm/generate", tokens)}
        for path, body in doors.values():
            asyncio.run(measure(server, path, body, options, 1))
        ratios, shares = [], []
        print(f"{'round':>5}  {'bench':>8}  {'text':>8}  {'tokens':>8}  tokens a second")
        for number in range(1, options.rounds + 1):
            alone = bench(options)
            found = {name: asyncio.run(measure(server, *door, options, options.each)) for name, door in doors.items()}
            print(f"{number:>5}  {alone:8.0f}  {found['text'][0]:8.0f}  {found['tokens'][0]:8.0f}", flush=True)
            ratios.append(found["text"][0] / alone)
            shares.append(1 - found["tokens"][1] / found["text"][1])
    finally:
        code = server.stop()
    print(f"text is {statistics.median(ratios):.2f} of bench; of its processor time the stages take {statistics.median(shares):.1%}")
    return code


if __name__ == "__main__":
    sys.exit(main())
