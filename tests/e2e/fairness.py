"""Streams over gRPC beside as many over HTTP (server-sent events): all of them get their share of the tokens.

    tools/test_python tests/e2e/fairness.py build/dev/tandem --streams 256 --seconds 10 [-- OPTIONS OF tandem serve]

Tokens are counted from when every stream has had its first one. The largest count of a stream may be 1.5 times the smallest, and no
request may fail. Client and server share the machine, so the figures are no measure of speed.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tritonclient.grpc.aio
from harness import answer_key
from triton import TritonServer, make_repository, names, question, row, tensors

MAX_TOKENS = 960  # of a context of 1024: more than a stream gets in the window
MODEL = "tensorrt_llm_bls"


def prompts(count):
    words = sorted(answer_key())
    return [f'What does "{word}" mean?' for word in words[:: len(words) // count][:count]]


class Window:
    """Counts the tokens of each stream while it is open."""

    def __init__(self, streams, seconds):
        self.waiting = set(range(streams))
        self.tokens = [0] * streams
        self.seconds = seconds
        self.opened = None
        self.end = asyncio.Event()

    def count(self, stream):
        self.waiting.discard(stream)
        now = time.monotonic()
        if self.opened is None:
            if not self.waiting:
                self.opened = now
        elif now - self.opened < self.seconds:
            self.tokens[stream] += 1
        else:
            self.end.set()


async def stream_grpc(client, window, stream, prompt):
    values = {**question(prompt, MAX_TOKENS), "stream": row(True, bool), "min_length": row(MAX_TOKENS, np.int32)}

    async def requests():
        yield {"model_name": MODEL, "inputs": tensors(tritonclient.grpc, values), "request_id": str(stream)}

    async for result, error in client.stream_infer(requests()):
        if error:
            raise error
        if names(result):
            window.count(stream)


async def stream_events(port, window, stream, prompt):
    body = json.dumps({"text_input": prompt, "max_tokens": MAX_TOKENS, "min_length": MAX_TOKENS, "stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST /v2/models/{MODEL}/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    status = await reader.readline()
    if b" 200 " not in status:
        raise AssertionError(f"{status} {await reader.read(1000)}")
    try:
        while line := await reader.readline():
            if line.startswith(b"data:"):
                if b'"error"' in line:
                    raise AssertionError(line.decode())
                window.count(stream)
    finally:
        writer.close()


async def measure(server, options):
    """(tokens of each gRPC stream, of each SSE stream, streams that ended or failed before the window did)"""
    window = Window(2 * options.streams, options.seconds)
    # gRPC multiplexes streams over a connection; eight clients are as many as have them in practice.
    clients = [tritonclient.grpc.aio.InferenceServerClient(server.grpc_url) for _ in range(8)]
    asked = prompts(options.streams)
    tasks = [asyncio.create_task(stream_grpc(clients[i % 8], window, i, text)) for i, text in enumerate(asked)]
    tasks += [asyncio.create_task(stream_events(server.port, window, options.streams + i, text)) for i, text in enumerate(asked)]
    closed = asyncio.create_task(window.end.wait())
    await asyncio.wait([closed, *tasks], timeout=options.timeout, return_when=asyncio.FIRST_COMPLETED)
    ended = [f"stream {i}: {task.exception() or 'ended'}" for i, task in enumerate(tasks) if task.done()]
    if not ended and not closed.done():
        ended = [f"{len(window.waiting)} streams have no token after {options.timeout} s"]
    for task in [closed, *tasks]:
        task.cancel()
    await asyncio.gather(closed, *tasks, return_exceptions=True)
    for client in clients:
        await client.close()
    return window.tokens[: options.streams], window.tokens[options.streams :], ended


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256, help="of each protocol")
    parser.add_argument("--seconds", type=float, default=10, help="length of the window")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--ratio", type=float, default=1.5, help="largest count of tokens, of the smallest")
    parser.add_argument("serve", nargs="*", help="further options of tandem serve, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "repository", decoupled=True, batch=2 * options.streams,
                                     exclude_input_in_output=True, kv_cache_free_gpu_mem_fraction=0.3)  # fmt: skip
        server = TritonServer(repository, "--max_batch_size", 2 * options.streams, "--max_queue_size", 2 * options.streams,
                              *options.serve)  # fmt: skip
        try:
            over_grpc, over_http, faults = asyncio.run(measure(server, options))
        finally:
            code = server.stop()
    both = over_grpc + over_http
    for name, tokens in (("gRPC", over_grpc), ("SSE", over_http), ("both", both)):
        print(f"{name:5} {len(tokens):4} streams: {min(tokens)} to {max(tokens)} tokens each, "
              f"{sum(tokens) / options.seconds:.0f} tokens a second")  # fmt: skip
    ratio = max(both) / max(1, min(both))
    if ratio > options.ratio:
        faults.append(f"the ratio is {ratio:.2f}")
    if code:
        faults.append(f"the server ended with {code}")
    for fault in faults[:10]:
        print(f"FAULT: {fault}")
    print(f"fairness: {'FAILED' if faults else 'passed'}, max/min {ratio:.2f}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
