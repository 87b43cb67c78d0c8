"""Minutes of mixed load on one server: streams, cancellations, prefix hits, preemption, refusals.

    python3 tests/e2e/soak.py build/dev/tandem --seconds 480 [-- OPTIONS OF tandem serve]

Every answer is compared with the one the same request got alone before the load began. At the end no request failed, no block
is referenced and neither the process nor the device holds more memory than when the load had settled. Standard library only.
"""

import argparse
import contextlib
import http.client
import json
import random
import sys
import threading
import time
from collections import Counter

from harness import Server, answer_key

CLIENTS = 48
SYSTEM = "You are a dictionary. " + "Answer with the definition alone, as it stands in the book. " * 8
GENERATE = "/v2/models/ensemble/generate"
FIGURES = ("tandem_preemptions_total", "tandem_prefix_hit_tokens_total", "tandem_kv_evictions_total",
           "tandem_drafts_accepted_total", "tandem_output_tokens_total")
# A cache too small for 48 clients, so that sequences are paused and evicted prefixes are computed again.
SERVE = ("--kv_cache_bytes", 24 << 20, "--max_seq_len", 1024, "--max_num_tokens", 512)


def requests():
    """(kind, path, body): each has one right answer."""
    words = random.Random(1).sample(sorted(answer_key()), 120)
    for i, word in enumerate(words):
        question = f'What does "{word}" mean?'
        if i % 6 == 0:
            chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
            yield "chat", "/v1/chat/completions", {"messages": chat, "max_tokens": 80}
        elif i % 6 == 1:
            yield "choices", "/v1/chat/completions", {"messages": [{"role": "user", "content": question}], "n": 2, "seed": i,
                                                      "temperature": 0.7, "max_tokens": 40}
        elif i % 6 == 2:
            yield "long prompt", GENERATE, {"text_input": "tandem and " * 200 + question, "max_tokens": 24}
        elif i % 6 == 3:
            yield "long answer", GENERATE, {"text_input": question, "max_tokens": 320, "min_length": 240}
        else:
            yield "question", GENERATE, {"text_input": question, "max_tokens": 80}


def answer_of(body):
    return body["text_output"] if "text_output" in body else [choice["message"]["content"] for choice in body["choices"]]


class Load:
    def __init__(self, server):
        self.server = server
        self.cases = list(requests())
        self.counts = Counter()
        self.lock = threading.Lock()
        self.alone = [self.ask(path, body) for _, path, body in self.cases]

    def ask(self, path, body):
        status, reply = self.server.post(path, body)
        if status != 200:
            raise AssertionError(f"{path} {body}: {status} {reply}")
        return answer_of(reply)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def stream_and_leave(self, body, chance):
        """Reads a few events of a stream and closes the connection."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)) as connection:
            connection.request("POST", GENERATE + "_stream", json.dumps({**body, "stream": True, "min_length": 200, "max_tokens": 300}))
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(f"stream: {response.status} {response.read()}")
            for _ in range(chance.randrange(1, 12)):
                response.readline()

    def turn(self, chance):
        i = chance.randrange(len(self.cases))
        kind, path, body = self.cases[i]
        what = chance.random()
        if what < 0.15 and path == GENERATE:
            self.stream_and_leave(body, chance)
            return "left"
        if what < 0.2:
            status, _ = self.server.post(GENERATE, {"text_input": "x", "max_tokens": -1})
            return "refused" if status == 400 else f"WRONG status {status} of a bad request"
        if what < 0.6 and path == GENERATE:
            kind += ", streamed"
            given = "".join(json.loads(event)["text_output"] for event in self.server.events(GENERATE + "_stream", {**body, "stream": True}))
        else:
            given = self.ask(path, body)
        return kind if given == self.alone[i] else f"DIFFERENT {kind}"

    def work(self, seed, end):
        chance = random.Random(seed)
        while time.monotonic() < end:
            try:
                self.count(self.turn(chance))
            except Exception as error:  # counted, shown, and fatal at the end
                self.count(f"ERROR {type(error).__name__}: {error}"[:200])


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def watch(server, seconds, end):
    """(resident bytes, free bytes of the device) over time, after the first fifth of the load."""
    samples = []
    settled = time.monotonic() + seconds / 5
    while time.monotonic() < end:
        time.sleep(min(2.0, seconds / 50))
        if time.monotonic() > settled:
            samples.append((resident_bytes(server.process.pid), server.metric("tandem_memory_free_bytes")))
    return samples


def growth(samples):
    """Growth of the peak from the first third to the last."""
    third = max(1, len(samples) // 3)
    return max(samples[-third:]) - max(samples[:third])


def faults(load, server, samples, on_device, allowed_differences):
    """The faults, one line each."""
    counts = load.counts
    bad = {what: n for what, n in counts.items() if what.startswith(("WRONG", "ERROR"))}
    yield from (f"{n} x {what}" for what, n in bad.items())
    different = sum(n for what, n in counts.items() if what.startswith("DIFFERENT"))
    if different > allowed_differences * counts.total():
        yield f"{different} of {counts.total()} answers differ from those given alone"
    for _ in range(100):
        referenced = server.metric('tandem_kv_blocks{state="referenced"}')
        if referenced == 0 and server.metric("tandem_requests_running") == 0:
            break
        time.sleep(0.1)
    else:
        yield f"{referenced:.0f} blocks are still referenced"
    if failed := server.metric("tandem_engine_requests_failed_total"):
        yield f"{failed:.0f} requests failed in the engine"
    yield from (f"{event} is 0: the load did not do what it is for" for event in FIGURES if not server.metric(event))
    if counts["left"] == 0:
        yield "no stream was left early"
    resident, free = zip(*samples)
    if growth(resident) > 32 << 20:
        yield f"the process grew by {growth(resident) >> 20} MiB"
    if on_device and growth([-bytes_free for bytes_free in free]) > 0:
        yield f"the device lost {growth([-bytes_free for bytes_free in free]) / 2**20:.1f} MiB"


def run(server, options):
    """Loads the server, prints the results, and returns the faults."""
    load = Load(server)
    end = time.monotonic() + options.seconds
    clients = [threading.Thread(target=load.work, args=(seed, end), daemon=True) for seed in range(CLIENTS)]
    for client in clients:
        client.start()
    samples = watch(server, options.seconds, end)
    for client in clients:
        client.join()
    for what, n in sorted(load.counts.items()):
        print(f"{n:8} {what}")
    for name in FIGURES:
        print(f"{server.metric(name):8.0f} {name}")
    resident, free = zip(*samples)
    print(f"resident {resident[0] >> 20} -> {resident[-1] >> 20} MiB, "
          f"free on the device {free[0] / 2**20:.1f} -> {free[-1] / 2**20:.1f} MiB")
    return list(faults(load, server, samples, "cuda" in options.serve, options.allowed_differences))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--allowed_differences", type=float, default=0,
                        help="share of answers that may differ: near-ties on a device whose sums depend on the batch")
    parser.add_argument("serve", nargs="*", help="further options of tandem serve, after --")
    options = parser.parse_args()
    server = Server(*SERVE, *options.serve)
    try:
        found = run(server, options)
    finally:
        code = server.stop()
    if code:
        found.append(f"the server ended with {code}")
    for fault in found:
        print(f"FAULT: {fault}")
    print(f"soak: {'FAILED' if found else 'passed'} after {options.seconds:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
