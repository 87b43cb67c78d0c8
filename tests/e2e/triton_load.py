"""Many requests of every kind that Triton's own client can send, at once: none may fail, and nothing may be left of them.

    tools/test_python tests/e2e/triton_load.py build/dev/tandem --requests 10000
    tools/test_python tests/e2e/triton_load.py build/dev/tandem --reloads 200

With --reloads another model is loaded, asked and unloaded meanwhile, that often, and the memory of the process (and of a GPU, which
nobody else may be using) must stay what it was after a tenth of the rounds. Every answer is compared with the one that the same question got alone before the load began. At the end no sequence is open, and
every block of the cache is free or cached.
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http
from harness import answer_key
from triton import DRAFT, PAIR, TARGET, Stream, TritonServer, is_final, make_repository, named, names, question, row, tensors
from triton import token_request
from tritonclient.utils import InferenceServerException

GRPC, HTTP = tritonclient.grpc, tritonclient.http
CLIENTS = 24
MAX_TOKENS = 24
WORDS = sorted(answer_key())[7:4000:97]  # few enough for prefixes to be found again
STREAMED = {"stream": row(True, bool)}
SECOND = "second"  # the model that --reloads loads and unloads
GROWTH = 64 << 20  # bytes that the process may gain, and the device lose


class Wrong(Exception):
    """An answer is not what it has to be."""


def expect(what, found, expected):
    if found != expected:
        raise Wrong(f"{what}: {found!r} instead of {expected!r}")


class Client:
    """Sends requests of each kind over its own connections; each method is a kind."""

    def __init__(self, server, answers):
        self.server = server
        self.answers = answers  # of WORDS: (text, prompt's tokens, all tokens)
        self.grpc = GRPC.InferenceServerClient(server.grpc_url)
        self.http = HTTP.InferenceServerClient(server.http_url, concurrency=4)

    def close(self):
        self.grpc.close()
        self.http.close()

    def text_over_http(self, word, request_id, binary, **more):
        inputs = tensors(HTTP, question(f'What does "{word}" mean?', MAX_TOKENS), binary)
        outputs = named(HTTP, ["text_output"], binary)
        return self.http.infer("ensemble", inputs, outputs=outputs, request_id=request_id, **more)

    def check_text(self, result, word, request_id):
        response = result.get_response()
        expect("id", response["id"] if isinstance(response, dict) else response.id, request_id)
        text = result.as_numpy("text_output").item()  # of a tensor in JSON a str, else bytes
        expect("text", text if isinstance(text, str) else text.decode(), self.answers[word][0])

    def check_tokens(self, result, word):
        expect("output_ids", result.as_numpy("output_ids")[0, 0].tolist(), self.answers[word][2])

    def http_json(self, word, request_id):
        self.check_text(self.text_over_http(word, request_id, False), word, request_id)

    def http_binary(self, word, request_id):
        self.check_text(self.text_over_http(word, request_id, True), word, request_id)

    def http_compressed(self, word, request_id):
        result = self.text_over_http(word, request_id, True, request_compression_algorithm="gzip",
                                     response_compression_algorithm="deflate")  # fmt: skip
        self.check_text(result, word, request_id)

    def http_async(self, word, request_id):
        inputs = tensors(HTTP, question(f'What does "{word}" mean?', MAX_TOKENS))
        asked = [self.http.async_infer("ensemble", inputs, request_id=f"{request_id}.{i}") for i in range(2)]
        for i, call in enumerate(asked):
            self.check_text(call.get_result(), word, f"{request_id}.{i}")

    def http_tokens_and_logits(self, word, request_id):
        prompt = self.answers[word][1]
        values = token_request(prompt, MAX_TOKENS, return_generation_logits=row(True, bool))
        result = self.http.infer(TARGET, tensors(HTTP, values), request_id=request_id)
        self.check_tokens(result, word)
        drawn = result.as_numpy("generation_logits")[0, 0].argmax(axis=1).tolist()
        expect("tokens of the largest logits", drawn, self.answers[word][2][len(prompt) :])

    def generate(self, word, request_id):
        status, reply = self.server.generate(f'What does "{word}" mean?', max_tokens=MAX_TOKENS, id=request_id)
        expect("reply", (status, reply.get("id"), reply.get("text_output")), (200, request_id, self.answers[word][0]))

    def grpc_sync(self, word, request_id):
        inputs = tensors(GRPC, question(f'What does "{word}" mean?', MAX_TOKENS))
        self.check_text(self.grpc.infer("ensemble", inputs, request_id=request_id), word, request_id)

    def grpc_tokens(self, word, request_id):
        inputs = tensors(GRPC, token_request(self.answers[word][1], MAX_TOKENS))
        self.check_tokens(self.grpc.infer(TARGET, inputs, request_id=request_id), word)

    def grpc_async(self, word, request_id):
        inputs = tensors(GRPC, question(f'What does "{word}" mean?', MAX_TOKENS))
        asked = []
        for i in range(3):
            done = threading.Event()
            found = []
            self.grpc.async_infer("ensemble", inputs, lambda result, error, f=found, d=done: (f.append(error or result), d.set()),
                                  request_id=f"{request_id}.{i}")  # fmt: skip
            asked.append((done, found))
        for i, (done, found) in enumerate(asked):
            if not done.wait(120):
                raise Wrong("no response within 120 s")
            if isinstance(found[0], Exception):
                raise found[0]
            self.check_text(found[0], word, f"{request_id}.{i}")

    def grpc_async_cancelled(self, word, _):
        inputs = tensors(GRPC, question(f'What does "{word}" mean?', 400, min_length=row(400, np.int32)))
        done = threading.Event()
        found = []
        call = self.grpc.async_infer("ensemble", inputs, lambda result, error: (found.append(error), done.set()))
        time.sleep(0.01)
        call.cancel()
        if not done.wait(120):
            raise Wrong("a cancelled call has not ended within 120 s")
        if found[0]:  # else it was faster than the cancellation
            expect("status", found[0].status(), "StatusCode.CANCELLED")

    def grpc_stream(self, word, request_id):
        """Several requests on one stream, told apart by their ids."""
        stream = Stream(self.grpc)
        try:
            for i in range(3):
                values = {**question(f'What does "{word}" mean?', MAX_TOKENS), **STREAMED}
                stream.send("tensorrt_llm_bls", values, request_id=f"{request_id}.{i}", enable_empty_final_response=i == 0)
            texts, finals = Counter(), Counter()
            found = {f"{request_id}.{i}": "" for i in range(3)}
            while len(finals) < 3:
                part = stream.next()
                name = part.get_response().id
                if names(part):
                    found[name] += part.as_numpy("text_output").item().decode()
                    texts[name] += 1
                finals[name] += is_final(part)
                finals += Counter()  # without those that are 0
            for name, text in found.items():
                expect(name, (text, finals[name]), (self.answers[word][0], 1))
        finally:
            stream.stop()

    def grpc_stream_left(self, word, request_id):
        """Cancelled after its first parts."""
        stream = Stream(self.grpc)
        try:
            values = {**question(f'What does "{word}" mean?', 400, min_length=row(400, np.int32)), **STREAMED}
            stream.send("tensorrt_llm_bls", values, request_id=request_id)
            for _ in range(3):
                expect("final", is_final(stream.next()), False)
        finally:
            stream.stop(cancel=True)

    def grpc_refused(self, word, _):
        try:
            self.grpc.infer("ensemble", tensors(GRPC, question(word, -1)))
        except InferenceServerException as error:
            expect("status", error.status(), "StatusCode.INVALID_ARGUMENT")
        else:
            raise Wrong("-1 tokens were accepted")


# Kinds, and how many requests each call of them sends.
KINDS = {
    "http_json": 1, "http_binary": 1, "http_compressed": 1, "http_async": 2, "http_tokens_and_logits": 1, "generate": 1,
    "grpc_sync": 1, "grpc_tokens": 1, "grpc_async": 3, "grpc_async_cancelled": 1, "grpc_stream": 3, "grpc_stream_left": 1,
    "grpc_refused": 1,
}  # fmt: skip


def answers_alone(server):
    found = {}
    with GRPC.InferenceServerClient(server.grpc_url) as client:
        for word in WORDS:
            text = f'What does "{word}" mean?'
            values = {"QUERY": np.array([[text.encode()]], object), "REQUEST_OUTPUT_LEN": row(MAX_TOKENS, np.int32)}
            prompt = client.infer("preprocessing", tensors(GRPC, values)).as_numpy("INPUT_ID")[0].tolist()
            ids = client.infer(TARGET, tensors(GRPC, token_request(prompt, MAX_TOKENS))).as_numpy("output_ids")[0, 0]
            answer = client.infer("ensemble", tensors(GRPC, question(text, MAX_TOKENS))).as_numpy("text_output").item()
            found[word] = (answer.decode(), prompt, ids.tolist())
    return found


def add_second_model(repository, folder):
    """An engine of its own, with weights of its own."""
    weights = folder / "weights"
    shutil.copytree(PAIR / "draft", weights)
    shutil.copytree(repository / DRAFT, repository / SECOND)
    config = repository / SECOND / "config.pbtxt"
    text = config.read_text().replace(f'name: "{DRAFT}"', f'name: "{SECOND}"').replace(str(PAIR / "draft"), str(weights))
    config.write_text(text)


class Reloads(threading.Thread):
    """Loads the second model, asks it, and unloads it, again and again."""

    def __init__(self, server, rounds, prompt):
        super().__init__()
        self.server = server
        self.rounds = rounds
        self.prompt = prompt
        self.memory = []  # (resident bytes, free bytes of the device) after each round
        self.faults = []

    def run(self):
        with HTTP.InferenceServerClient(self.server.http_url) as client:
            answers = set()
            for number in range(self.rounds):
                try:
                    client.load_model(SECOND)
                    result = client.infer(SECOND, tensors(HTTP, token_request(self.prompt, MAX_TOKENS)))
                    answers.add(tuple(result.as_numpy("output_ids")[0, 0].tolist()))
                    client.unload_model(SECOND)
                except Exception as error:  # shown, and fatal at the end
                    self.faults.append(f"round {number}: {type(error).__name__}: {error}")
                    return
                self.memory.append((self.server.metric("process_resident_memory_bytes"), self.server.metric("tandem_memory_free_bytes")))
        if len(answers) != 1:
            self.faults.append(f"the second model gave {len(answers)} different answers to one question")
        (resident, free), (last_resident, last_free) = self.memory[self.rounds // 10], self.memory[-1]
        print(f"{self.rounds} reloads: {resident / 2**20:.0f} to {last_resident / 2**20:.0f} MiB resident, "
              f"{free / 2**20:.0f} to {last_free / 2**20:.0f} MiB free on the device")  # fmt: skip
        if last_resident - resident > GROWTH:
            self.faults.append("the process has grown")
        has_gpu = any("Collecting metrics for GPU" in line for line in self.server.lines)
        if has_gpu and free - last_free > GROWTH:
            self.faults.append("the device has lost memory")


class Load:
    def __init__(self, server, requests, reloads):
        self.server = server
        self.answers = answers_alone(server)
        self.left = requests
        self.next = 0
        self.lock = threading.Lock()
        self.counts = Counter()
        self.reloads = Reloads(server, reloads, self.answers[WORDS[0]][1]) if reloads else None

    def take(self):
        """(number, kind), or None when enough requests were sent and the reloads are over."""
        with self.lock:
            if self.left <= 0 and not (self.reloads and self.reloads.is_alive()):
                return None
            kind = list(KINDS)[self.next % len(KINDS)]
            self.next += 1
            self.left -= KINDS[kind]
            return self.next, kind

    def work(self):
        client = Client(self.server, self.answers)
        while taken := self.take():
            number, kind = taken
            what, count = kind, KINDS[kind]
            try:
                getattr(client, kind)(WORDS[number % len(WORDS)], f"request {number}")
            except Exception as error:  # counted, shown, and fatal at the end
                what, count = f"ERROR {kind}: {type(error).__name__}: {error}"[:300], 1
            with self.lock:
                self.counts[what] += count
        client.close()

    def run(self):
        """Seconds that it took."""
        begin = time.monotonic()
        threads = [threading.Thread(target=self.work) for _ in range(CLIENTS)]
        if self.reloads:
            threads.insert(0, self.reloads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - begin


def faults(load, server):
    yield from (f"{n} x {what}" for what, n in load.counts.items() if what.startswith("ERROR"))
    figures = {}
    for _ in range(300):
        figures = {name: server.metric(name) for name in (
            "tandem_requests_running", "tandem_requests_waiting", 'tandem_kv_blocks{state="referenced"}')}  # fmt: skip
        if not any(figures.values()):
            break
        time.sleep(0.1)
    else:
        yield f"30 s after the last request: {figures}"
    states = [server.metric(f'tandem_kv_blocks{{state="{state}"}}') for state in ("free", "cached")]
    if sum(states) != server.metric("tandem_kv_capacity_blocks"):
        yield f"free and cached blocks are {states} of {server.metric('tandem_kv_capacity_blocks')}"
    if failed := server.metric("tandem_engine_requests_failed_total"):
        yield f"{failed:.0f} requests failed in the engine"
    if not server.metric("tandem_requests_cancelled_total"):
        yield "no request was cancelled: the load did not do what it is for"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--reloads", type=int, default=0, help="times that another model is loaded and unloaded meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "repository", bls_decoupled=True, batch=16, exclude_input_in_output=True)
        more = []
        if options.reloads:
            add_second_model(repository, Path(folder))
            loaded = [name.name for name in repository.iterdir() if name.name != SECOND]
            more = ["--model_control_mode", "explicit", *(word for name in loaded for word in ("--load_model", name))]
        server = TritonServer(repository, "--max_queue_size", 1024, *more)
        try:
            load = Load(server, options.requests, options.reloads)
            seconds = load.run()
            found = list(faults(load, server)) + (load.reloads.faults if load.reloads else [])
        finally:
            code = server.stop()
    if code:
        found.append(f"the server ended with {code}: {''.join(server.lines)}")
    for what, n in sorted(load.counts.items()):
        print(f"{n:8} {what}")
    for fault in found:
        print(f"FAULT: {fault}")
    count = load.counts.total()
    print(f"triton_load: {'FAILED' if found else 'passed'}, {count} requests in {seconds:.1f} s, {count / seconds:.0f} a second")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
