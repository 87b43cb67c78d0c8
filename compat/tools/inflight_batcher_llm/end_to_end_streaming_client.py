#!/usr/bin/env python3
"""Text in, text out, over gRPC, as the clients of release 0.5 asked: unsigned integers, word lists always sent.

    end_to_end_streaming_client.py -p "What is machine learning?" --output_len 20 --streaming
"""

import client_folder  # noqa: F401  (makes kserve_client known)
import numpy as np

from kserve_client import Client, Parser, given, many, run, tokenize


def make_parser():
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("-u", "--url", default="localhost:8001", help="the server's gRPC address")
    add("-i", "--protocol", choices=["grpc"], default="grpc")
    add("-m", "--model-name", default="ensemble")
    add("-p", "--prompt", required=True)
    add("-S", "--streaming", action="store_true")
    add("-o", "--output-len", type=int, default=10)
    add("--max-input-len", type=int, help="refuse a longer prompt")
    add("--tokenizer-dir", help="without effect: the server tokenizes")
    add("--tokenizer-type", help="without effect")
    add("-v", "--verbose", action="store_true")
    return parser


def request_of(options):
    return {
        **given(
            text_input=(options.prompt, object),
            max_tokens=(options.output_len, np.uint32),
            stream=(options.streaming, bool),
        ),
        "bad_words": many([""], object),
        "stop_words": many([""], object),
    }


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    with Client(options.url, verbose=options.verbose) as client:
        if options.max_input_len is not None:
            length = tokenize(client, [options.prompt])["INPUT_ID"].shape[1]
            if length > options.max_input_len:
                print(f"the prompt has {length} tokens, more than {options.max_input_len}")
                return 1
        for answer in client.stream_infer(options.model_name, request_of(options)):
            print("".join(answer.texts("text_output")), end="", flush=True)
    print()
    return 0


if __name__ == "__main__":
    run(main)
