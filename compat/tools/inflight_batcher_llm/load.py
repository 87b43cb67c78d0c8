"""Shared by the tools: data sets of prompts, and many requests at once."""

import json
import queue
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import client_folder  # noqa: F401  (makes kserve_client known)

from kserve_client import Client


@dataclass
class Prompt:
    text: str
    max_tokens: int


def read_dataset(path, tokens_per_word=1.3):
    """A JSON list of {"input", "instruction", "output"}; the length of the output bounds that of the answer."""
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    return [
        Prompt(
            " ".join(part for part in (row["input"], row.get("instruction", "")) if part),
            int(tokens_per_word * len(row.get("output", "").split(" "))),
        )
        for row in rows
    ]


class Load:
    """Calls from threads, each with a connection of its own, which no other thread may touch."""

    def __init__(self, url, protocol, concurrency):
        self._address = (url, protocol)
        Client(*self._address).close()  # a wrong address fails here, not in a thread
        self._concurrency = concurrency
        self._calls = queue.SimpleQueue()
        self._threads = []

    def _work(self):
        with Client(*self._address) as client:
            for future, call, arguments, begin in iter(self._calls.get, None):
                try:
                    future.set_result((call(client, *arguments), begin, time.perf_counter()))
                except Exception as error:  # raised where the result is asked for
                    future.set_exception(error)

    def submit(self, call, *arguments):
        """The future of `(result of call(client, *arguments), begin, end)`; the times are in seconds."""
        future = Future()
        self._calls.put((future, call, arguments, time.perf_counter()))
        if len(self._threads) < self._concurrency:
            self._threads.append(threading.Thread(target=self._work))
            self._threads[-1].start()
        return future

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """Waits for all calls; after an exception, only for those that have begun."""
        with suppress(queue.Empty):
            while kind:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()


def add_server_flags(parser, concurrency=128):
    add = parser.add_argument
    add("-u", "--url", help="the server's address; default: localhost:8001 for grpc, localhost:8000 for http")
    add("-i", "--protocol", choices=["grpc", "http"], default="grpc")
    add("-c", "--concurrency", type=int, default=concurrency, help="most requests at a time")
    add("-v", "--verbose", action="store_true")


def url_of(options):
    return options.url or {"grpc": "localhost:8001", "http": "localhost:8000"}[options.protocol]
