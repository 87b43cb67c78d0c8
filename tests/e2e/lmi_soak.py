"""Minutes of mixed load on /invocations: whole answers, streams, lists, chats, answers fetched later, clients that leave.

    python3 tests/e2e/lmi_soak.py build/dev/tandem --minutes 8 [-- OPTIONS OF tandem serve]

Every greedy answer is compared with the one that the same request got alone before the load began. At the end no request failed,
no block is referenced and the process holds no more memory than when the load had settled. Standard library only.
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

import soak
from harness import Server, answer_key

CLIENTS = 24
ALLOWED_GROWTH = 24 << 20  # bytes of the process: what its allocator keeps
SERVE = ("--max_seq_len", 1024)


def cases():
    """(kind, body): each has one right answer."""
    words = random.Random(1).sample(sorted(answer_key()), 100)
    for i, word in enumerate(words):
        question = f'What does "{word}" mean?'
        parameters = {"max_new_tokens": 60, "details": True}
        if i % 5 == 0:
            yield "list", {"inputs": [question, "tandem"], "parameters": {"max_new_tokens": 40}}
        elif i % 5 == 1:
            yield "chat", {"messages": [{"role": "user", "content": question}], "max_tokens": 60, "temperature": 0}
        elif i % 5 == 2:
            yield "long", {"inputs": "tandem and " * 150 + question, "parameters": parameters}
        else:
            yield "inputs", {"inputs": question, "parameters": parameters}


def text_of(kind, reply):
    if kind == "chat":
        return reply["choices"][0]["message"]["content"]
    return [answer["generated_text"] for answer in reply] if kind == "list" else reply["generated_text"]


class Load(soak.Load):
    def __init__(self, server):
        self.server = server
        self.cases = list(cases())
        self.counts = Counter()
        self.lock = threading.Lock()
        self.alone = [self.whole(kind, body) for kind, body in self.cases]

    def send(self, body, headers=None):
        status, given, text = self.server.request("POST", "/invocations", body, headers)
        if status not in (200, 202):
            raise AssertionError(f"{status} {text}")
        return status, given, text

    def whole(self, kind, body):
        return text_of(kind, json.loads(self.send(body)[2]))

    def stream(self, kind, body):
        lines = [json.loads(line) for line in self.send({**body, "stream": True})[2].splitlines()]
        if kind == "chat":
            return "".join(line["choices"][0]["delta"].get("content", "") for line in lines)
        if kind == "list":
            return ["".join(line["outputs"][i] for line in lines) for i in range(2)]
        return lines[-1]["generated_text"]

    def later(self, kind, body):
        token = self.send(body, {"x-synchronous": "false"})[1]["x-next-token"]
        while True:
            status, _, text = self.send("", {"x-starting-token": token})
            if status == 200:
                return text_of(kind, json.loads(text))
            time.sleep(0.05)

    def leave(self, body, chance):
        parameters = {"max_new_tokens": 400, "ignore_eos_token": True}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)) as connection:
            connection.request("POST", "/invocations", json.dumps({"inputs": body["inputs"], "parameters": parameters, "stream": chance.random() < 0.8}))
            if chance.random() < 0.8:
                time.sleep(chance.random() / 4)

    def turn(self, chance):
        i = chance.randrange(len(self.cases))
        kind, body = self.cases[i]
        what = chance.random()
        if what < 0.15 and "inputs" in body:
            self.leave(body, chance)
            return "left"
        if what < 0.2:
            status, _, _ = self.server.request("POST", "/invocations", {"inputs": "x", "parameters": {"max_new_tokens": -1}})
            return "refused" if status == 424 else f"WRONG status {status} of a bad request"
        ask, how = (self.stream, "streamed") if what < 0.6 else (self.later, "later") if what < 0.65 else (self.whole, "whole")
        given = ask(kind, body)
        return f"{kind}, {how}" if given == self.alone[i] else f"DIFFERENT {kind}, {how}"


def faults(load, server, samples, on_device):
    for what, count in load.counts.items():
        # On a GPU near-ties may be decided differently beside other sequences.
        if what.startswith(("WRONG", "ERROR")) or (what.startswith("DIFFERENT") and not on_device):
            yield f"{count} x {what}"
    end = time.monotonic() + 30
    while server.metric("tandem_requests_running") > 0 and time.monotonic() < end:
        time.sleep(0.1)
    for name in ("tandem_requests_running", "tandem_requests_waiting", 'tandem_kv_blocks{state="referenced"}'):
        if value := server.metric(name):
            yield f"{name} is {value} at the end"
    if (more := soak.growth([resident for resident, _ in samples])) > ALLOWED_GROWTH:
        yield f"the process grew by {more >> 20} MiB"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--on_device", action="store_true", help="answers may differ from those alone")
    own, options = parser.parse_known_args()
    server = Server(*SERVE, *[option for option in options if option != "--"])
    load = Load(server)
    end = time.monotonic() + 60 * own.minutes
    clients = [threading.Thread(target=load.work, args=(seed, end)) for seed in range(CLIENTS)]
    for client in clients:
        client.start()
    samples = soak.watch(server, 60 * own.minutes, end)
    for client in clients:
        client.join()
    for what, count in sorted(load.counts.items()):
        print(f"{count:7} {what}")
    print(f"growth {soak.growth([resident for resident, _ in samples]) >> 10} KiB over {len(samples)} samples")
    bad = list(faults(load, server, samples, own.on_device))
    if server.stop() != 0:
        bad.append("the server did not end well")
    print("\n".join(bad) if bad else "no faults")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
