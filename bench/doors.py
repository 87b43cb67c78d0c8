#!/usr/bin/env python3
"""Compares the doors of one server: tokens a second over gRPC beside generate_stream over HTTP, in turn, with every stream open.

    tools/test_python bench/doors.py --tandem build/release/tandem --dummy bench/configs/llama-3.1-8b.json -- --weights fp8

Each door is loaded by --processes clients with --streams streams in all. Tokens are counted for --seconds from when every stream
has had its first one; the doors take --rounds turns. The table shows the median of each, and the server's own processor time per
token. A dummy model gets a made-up tokenizer of its vocabulary, so that the answers are text and pass through all stages.
Exits with 1 where a request failed or gRPC gives less than --least of what HTTP gives. Arguments after `--` go to `tandem serve`.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = "tensorrt_llm_bls"


def made_up_tokenizer(vocab_size, folder):
    """A byte-level BPE whose tokens are the bytes, pairs of letters, and pairs of those pairs."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in range(256 - len(printable)))
    tokens = [chr(byte) if byte in printable else next(others) for byte in range(256)]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pairs = [(a, b) for a in letters for b in letters]
    joined = [a + b for a, b in pairs]
    merges = list(itertools.islice(itertools.chain(pairs, itertools.product(joined, joined)), vocab_size - len(tokens)))
    tokens += [a + b for a, b in merges]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "vocab": {token: id for id, token in enumerate(tokens)},
        "merges": [f"{a} {b}" for a, b in merges],
        "fuse_unk": False,
        "byte_fallback": False,
    }
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


class Server:
    """`tandem serve` with both doors on free ports."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, ports = [], {}
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r"Started (\w+).* at 127\.0\.0\.1:(\d+)", line):
                ports[found[1]] = int(found[2])
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.ports = {"grpc": ports["GRPCInferenceService"], "http": int(found[1])}
                break
        else:
            sys.exit("the server ended early:\n" + "".join(self.lines))
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def processor_seconds(self):
        user, system = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)


async def stream_grpc(client, prompt, max_tokens, count):
    import numpy
    from tritonclient.grpc import InferInput

    def row(name, value, datatype):
        made = InferInput(name, [1, 1], datatype)
        kinds = {"BYTES": object, "INT32": numpy.int32, "BOOL": bool}
        made.set_data_from_numpy(numpy.array([[value]], kinds[datatype]))
        return made

    inputs = [
        row("text_input", prompt.encode(), "BYTES"),
        row("max_tokens", max_tokens, "INT32"),
        row("min_length", max_tokens, "INT32"),
        row("stream", True, "BOOL"),
    ]

    async def requests():
        yield {"model_name": MODEL, "inputs": inputs}

    async for result, error in client.stream_infer(requests()):
        if error:
            raise error
        if result.get_response().outputs:
            count()


async def stream_http(port, prompt, max_tokens, count):
    body = json.dumps({"text_input": prompt, "max_tokens": max_tokens, "min_length": max_tokens, "stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST /v2/models/{MODEL}/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status} {await reader.read(1000)}")
    try:
        while line := await reader.readline():
            if line.startswith(b"data:"):
                if b'"error"' in line:
                    raise RuntimeError(line.decode())
                count()
    finally:
        writer.close()


async def run_streams(door, port, prompts, max_tokens, tokens, first, stopped):
    def counter(stream):
        def count():
            tokens[first + stream] += 1

        return count

    clients = []
    if door == "grpc":
        import tritonclient.grpc.aio

        clients = [tritonclient.grpc.aio.InferenceServerClient(f"127.0.0.1:{port}") for _ in range(2)]
    tasks = [
        asyncio.create_task(
            stream_grpc(clients[i % 2], prompt, max_tokens, counter(i))
            if clients
            else stream_http(port, prompt, max_tokens, counter(i))
        )
        for i, prompt in enumerate(prompts)
    ]
    failed = None
    while not stopped.is_set():
        await asyncio.sleep(0.1)
        if ended := [task for task in tasks if task.done()]:
            failed = ended[0].exception() or "a stream ended inside the window: raise --output_len"
            break
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        await client.close()
    if failed:
        sys.exit(f"{door}: {failed}")


def client_process(*arguments):
    asyncio.run(run_streams(*arguments))


def measure(server, door, options, prompts):
    """(tokens a second, the server's processor time in microseconds per token)"""
    tokens = multiprocessing.Array("q", options.streams, lock=False)
    stopped = multiprocessing.Event()
    cuts = [options.streams * i // options.processes for i in range(options.processes + 1)]
    clients = [
        multiprocessing.Process(
            target=client_process,
            args=(door, server.ports[door], prompts[a:b], options.output_len, tokens, a, stopped),
        )
        for a, b in itertools.pairwise(cuts)
    ]
    for client in clients:
        client.start()
    try:
        deadline = time.monotonic() + options.timeout
        while not all(tokens) and time.monotonic() < deadline and all(client.is_alive() for client in clients):
            time.sleep(0.05)
        if not all(tokens):
            sys.exit(f"{door}: {sum(1 for n in tokens if not n)} streams have no token")
        before, used, begun = sum(tokens), server.processor_seconds(), time.monotonic()
        time.sleep(options.seconds)
        after, spent, ended = sum(tokens), server.processor_seconds(), time.monotonic()
    finally:
        stopped.set()
        for client in clients:
            client.join()
    if any(client.exitcode for client in clients):
        sys.exit(f"{door}: a client failed")
    return (after - before) / (ended - begun), (spent - used) / (after - before) * 1e6


def main():
    arguments, more = sys.argv[1:], []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, more = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="target and draft; default: the embedded pair")
    parser.add_argument("--dummy", help="a config.json instead of a model")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--processes", type=int, default=8, help="clients among which the streams are divided; default: 8")
    parser.add_argument("--seconds", type=float, default=10, help="length of a measurement; default: 10")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each door; default: 3")
    parser.add_argument("--input_words", type=int, default=64, help="words of a prompt; default: 64")
    parser.add_argument("--output_len", type=int, default=4096, help="tokens that a stream asks for; default: 4096")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for all streams to have a token; default: 120")
    parser.add_argument("--least", type=float, default=0.95, help="of HTTP's tokens that gRPC must give; default: 0.95")
    parser.add_argument("--tandem", default=str(ROOT / "build" / "release" / "tandem"), help="the program to measure")
    options = parser.parse_args(arguments)

    words = random.Random(1)
    prompts = [
        " ".join("".join(words.choices("abcdefghijklmnopqrstuvwxyz", k=4)) for _ in range(options.input_words))
        for _ in range(options.streams)
    ]
    with contextlib.ExitStack() as stack:
        command = [options.tandem, "serve", *options.models, "--port", "0", "--grpc_port", "0"]
        command += ["--max_batch_size", str(options.streams), *more]
        if options.dummy:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made_up_tokenizer(json.loads(pathlib.Path(options.dummy).read_text())["vocab_size"], folder)
            command += ["--dummy", options.dummy, "--tokenizer_dir", str(folder)]
        server = Server(command)
        results = {"http": [], "grpc": []}
        try:
            for _ in range(options.rounds):
                for door, measured in results.items():
                    measured.append(measure(server, door, options, prompts))
        finally:
            code = server.stop()
    medians = {door: statistics.median(rate for rate, _ in measured) for door, measured in results.items()}
    for door, measured in results.items():
        rates = " ".join(f"{rate:.0f}" for rate, _ in measured)
        cost = statistics.median(cost for _, cost in measured)
        print(f"{door}  {medians[door]:8.0f} tokens a second (each round: {rates}), server {cost:.1f} us of processor time a token")
    ratio = medians["grpc"] / medians["http"]
    print(f"gRPC gives {ratio:.3f} of HTTP's tokens")
    return 1 if code or ratio < options.least else 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
