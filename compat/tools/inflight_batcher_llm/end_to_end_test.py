#!/usr/bin/env python3
"""Asks each prompt of a data set in two ways or three (the raw models, the ensemble, BLS), compares the texts, then
sends all prompts at once.

    end_to_end_test.py --dataset data.json --max-input-len 500
"""

import time

import load
import numpy as np

from end_to_end_grpc_client import text_tensors
from kserve_client import Client, Parser, detokenize, given, run, tokenize

LOG_PROBS = ["cum_log_probs", "output_log_probs"]


def make_parser():
    parser = Parser(description=__doc__)
    load.add_server_flags(parser)
    add = parser.add_argument
    add("--max-input-len", type=int, required=True, help="prompts with more tokens are skipped")
    add("--dataset", required=True, help='JSON list of {"input", "instruction", "output"}')
    add("--tensorrt-llm-model-name", default="tensorrt_llm")
    add("--return-log-probs", action="store_true")
    add("--return-context-logits", action="store_true")
    add("--return-generation-logits", action="store_true")
    add("--test-bls", action="store_true", help="ask tensorrt_llm_bls, too")
    return parser


def returns(options):
    """(inputs that ask for tensors, names of these tensors)"""
    asked = {
        "return_log_probs": LOG_PROBS if options.return_log_probs else [],
        "return_context_logits": ["context_logits"] if options.return_context_logits else [],
        "return_generation_logits": ["generation_logits"] if options.return_generation_logits else [],
    }
    inputs = given(**{name: (True if names else None, bool) for name, names in asked.items()})
    return inputs, [name for names in asked.values() for name in names]


def by_hand(client, options, made):
    """The tensors that three requests give, as the ensemble would answer."""
    inputs, names = returns(options)
    answer = client.infer(
        options.tensorrt_llm_model_name,
        {
            "input_ids": made["INPUT_ID"],
            "input_lengths": made["REQUEST_INPUT_LEN"],
            "decoder_input_ids": made["DECODER_INPUT_ID"],
            "decoder_input_lengths": made["REQUEST_DECODER_INPUT_LEN"],
            "request_output_len": made["REQUEST_OUTPUT_LEN"],
            "bad_words_list": made["BAD_WORDS_IDS"],
            "stop_words_list": made["STOP_WORDS_IDS"],
            "end_id": made["OUT_END_ID"],
            "pad_id": made["OUT_PAD_ID"],
            **inputs,
        },
    ).tensors
    length = int(answer["sequence_length"].flat[0])
    text = detokenize(client, answer["output_ids"][0, 0, :length])
    return {"text_output": text, **{name: answer[name] for name in names}}


def by_model(client, options, prompt, model):
    inputs, names = returns(options)
    tensors = text_tensors([prompt.text], prompt.max_tokens, streaming=False, exclude_input_in_output=None)
    answer = client.infer(model, {**tensors, **inputs}, ["text_output", *names])
    return {**answer.tensors, "text_output": answer.texts("text_output")[0]}


def differences(one, other):
    """What is not alike in two answers, in words; logits may differ by rounding."""
    found = []
    for name in one.keys() | other.keys():
        if name not in one or name not in other:
            found.append(f"{name} is missing")
        elif name == "text_output":
            if one[name] != other[name]:
                found.append(f"texts {one[name]!r} and {other[name]!r}")
        elif one[name].shape != other[name].shape:
            found.append(f"{name} has shapes {one[name].shape} and {other[name].shape}")
        elif not np.allclose(one[name], other[name], rtol=1e-2, atol=1e-2):
            found.append(f"{name} differs")
    return found


def compare(client, options, prompts):
    """(prompts that are short enough, count of failures)"""
    kept, failures = [], 0
    for prompt in prompts:
        made = tokenize(client, [prompt.text], prompt.max_tokens)
        if made["INPUT_ID"].shape[1] > options.max_input_len:
            continue
        kept.append(prompt)
        expected = by_hand(client, options, made)
        for model in ["ensemble"] + (["tensorrt_llm_bls"] if options.test_bls else []):
            for difference in differences(expected, by_model(client, options, prompt, model)):
                failures += 1
                print(f"[ERROR] {prompt.text!r}: the raw models and {model}: {difference}")
        if options.verbose:
            print(f"{prompt.text!r} -> {expected['text_output']!r}")
    return kept, failures


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    prompts = load.read_dataset(options.dataset)
    print(f"[INFO] Start testing on {len(prompts)} prompts.")
    with Client(load.url_of(options), options.protocol, verbose=False) as client:
        prompts, failures = compare(client, options, prompts)
        if failures:
            return 1
        print("[INFO] Functionality test succeeded.")
    if not prompts:
        print(f"[ERROR] no prompt has at most {options.max_input_len} tokens")
        return 1
    with load.Load(load.url_of(options), options.protocol, options.concurrency) as pool:
        for model in ["ensemble"] + (["tensorrt_llm_bls"] if options.test_bls else []):
            print(f"[INFO] Start benchmarking {model} on {len(prompts)} prompts.")
            begin = time.perf_counter()
            futures = [pool.submit(by_model, options, prompt, model) for prompt in prompts]
            for future in futures:
                future.result()
            print(f"[INFO] Total Latency: {1000 * (time.perf_counter() - begin):.3f} ms")
    return 0


if __name__ == "__main__":
    run(main)
