#!/usr/bin/env python3
"""Floods a model and passes when its full queue refuses requests in the words that Triton's users look for.

    test_max_queue_size.py --protocol http --url localhost:8000 --input-tokens-csv tokens.csv
"""

import client_folder  # noqa: F401  (makes the clients' modules known)
import load
from tritonclient.utils import InferenceServerException

import inflight_batcher_llm_client as tokens_client
from kserve_client import Client, run, tokenize

REFUSALS = {"grpc": "Exceeds maximum queue size", "http": "Maximum queue size of"}


def make_parser():
    parser = tokens_client.make_parser()
    parser.description = __doc__
    parser.set_defaults(url=None)
    add = parser.add_argument
    add("-i", "--protocol", choices=["grpc", "http"], default="grpc")
    add("--concurrency", type=int, default=256, help="requests at a time")
    add("--num-requests", type=int, default=1024)
    return parser


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    url = load.url_of(options)
    if options.input_tokens_csv:
        prompt = tokens_client.read_tokens(options.input_tokens_csv)
    else:
        with Client(url, options.protocol) as client:
            prompt = tokenize(client, [options.text])["INPUT_ID"][0].tolist()
    tensors = tokens_client.request_of(options, prompt)

    def ask(client):
        try:
            if options.streaming:
                for _ in client.stream_infer(options.model_name, tensors):
                    pass
            else:
                client.infer(options.model_name, tensors)
        except InferenceServerException as error:
            return error.message()
        return None

    with load.Load(url, options.protocol, options.concurrency) as pool:
        errors = [future.result()[0] for future in [pool.submit(ask) for _ in range(options.num_requests)]]
    refused = [error for error in errors if error and REFUSALS[options.protocol] in error]
    others = {error for error in errors if error} - set(refused)
    print(f"{options.num_requests} requests: {errors.count(None)} answered, {len(refused)} refused by a full queue")
    for error in sorted(others):
        print(f"another error: {error}")
    if not refused:
        print("no request was refused: raise --num-requests and --concurrency, or lower the model's max_queue_size")
    return 0 if refused and not others else 1


if __name__ == "__main__":
    run(main)
