#!/usr/bin/env python3
"""Compares the texts of speculative decoding with those of the target alone, prompt by prompt.

The speculative text comes from tensorrt_llm_bls (--execute-bls-speculative-decoding), or from a loop of the client's
own over the raw models. The exit code is 1 when texts differ; with --disable-output-comparison, when a text is empty.
"""

import client_folder  # noqa: F401  (makes the clients' modules known)
import load
import numpy as np
from tritonclient.utils import InferenceServerException

from e2e_grpc_speculative_decoding_client import Loop, speculate
from end_to_end_grpc_client import text_tensors
from kserve_client import Client, Parser, many, run, tokenize


def make_parser():
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--max-input-len", type=int, required=True, help="prompts with more tokens are skipped")
    add("--dataset", required=True, help='JSON list of {"input", "instruction", "output"}')
    add("--url-target", required=True, help="gRPC address of the target's server")
    add("--url-draft", required=True, help="gRPC address of the draft's server")
    add("--url-control", required=True, help="gRPC address of the server that answers without speculation")
    add("--preprocessor-model-name", default="preprocessing")
    add("--postprocessor-model-name", default="postprocessing")
    add("--draft-tensorrt-llm-model-name", default="tensorrt_llm")
    add("--target-tensorrt-llm-model-name", default="tensorrt_llm")
    add("--bls-speculative-tensorrt-llm-model-name", default="tensorrt_llm_bls")
    add("--execute-bls-speculative-decoding", action="store_true", help="the server runs the loop")
    add("--num-draft-tokens", type=int, default=5)
    add("--use-draft-logits", action="store_true", help="accept by the ratio of the models' probabilities")
    add("--disable-output-comparison", action="store_true", help="texts may differ, but not be empty")
    add("--return-draft-model-draft-logits", action="store_true", help="print the draft's logits")
    add("--return-target-model-accepted-token-logits", action="store_true", help="print the target's logits")
    add("-b", "--beam-width", type=int, default=1)
    add("--temperature", type=float, default=1.0)
    add("--end-id", type=int)
    add("--pad-id", type=int)
    add("-v", "--verbose", action="store_true")
    return parser


def ask_text_model(client, model, prompt, options, **more):
    """The text of prompt and answer, as a stream of one answer."""
    tensors = text_tensors(
        [prompt.text],
        prompt.max_tokens,
        False,
        options.beam_width,
        options.temperature,
        end_id=(options.end_id, np.int32),
        pad_id=(options.pad_id, np.int32),
        **more,
    )
    tensors["embedding_bias_words"] = many([], object)
    tensors["embedding_bias_weights"] = many([], np.float32)
    return "".join(answer.texts("text_output")[0] for answer in client.stream_infer(model, tensors, ["text_output"]))


def speculative_text(target, draft, prompt, options):
    if options.execute_bls_speculative_decoding:
        return ask_text_model(
            target,
            options.bls_speculative_tensorrt_llm_model_name,
            prompt,
            options,
            num_draft_tokens=(options.num_draft_tokens, np.int32),
            use_draft_logits=(options.use_draft_logits, bool),
        )
    loop = Loop(
        draft_model=options.draft_tensorrt_llm_model_name,
        target_model=options.target_tensorrt_llm_model_name,
        preprocessor=options.preprocessor_model_name,
        postprocessor=options.postprocessor_model_name,
        output_len=prompt.max_tokens,
        num_draft_tokens=options.num_draft_tokens,
        use_draft_logits=options.use_draft_logits,
        show_draft_logits=options.return_draft_model_draft_logits,
        show_target_logits=options.return_target_model_accepted_token_logits,
        end_id=options.end_id,
        pad_id=options.pad_id,
        verbose=options.verbose,
    )
    return speculate(prompt.text, loop, target, draft)


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    failed = total = 0
    with (
        Client(options.url_target) as target,
        Client(options.url_draft) as draft,
        Client(options.url_control) as control,
    ):
        for prompt in load.read_dataset(options.dataset):
            tokens = tokenize(target, [prompt.text], model=options.preprocessor_model_name)["INPUT_ID"]
            if tokens.shape[1] > options.max_input_len:
                print(f"skipped, {tokens.shape[1]} tokens: {prompt.text!r}")
                continue
            total += 1
            try:
                expected = ask_text_model(control, "ensemble", prompt, options)
                text = speculative_text(target, draft, prompt, options)
            except InferenceServerException as error:
                failed += 1
                print(f"FAILED: {prompt.text!r}: {error.message()}")
                continue
            print(f"Prompt: {prompt.text}\nControl text: {expected}\nSpeculative text: {text}")
            if not text if options.disable_output_comparison else text != expected:
                failed += 1
                print("FAILED: the text is empty" if not text else "FAILED: the texts differ")
    print(f"failed/total: {failed}/{total}")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    run(main)
