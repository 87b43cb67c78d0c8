#!/usr/bin/env python3
"""Speculative decoding by the client: a draft model proposes tokens, the target model accepts a part of them.

The server does this by itself for a model with a draft (tensorrt_llm_bls); this client does it with the raw models.

    e2e_grpc_speculative_decoding_client.py --url-target localhost:8001 \\
        --draft-tensorrt-llm-model-name tensorrt_llm_draft -p "What is Ubuntu operation system?"
"""

from dataclasses import dataclass, field

import numpy as np

from kserve_client import Client, Parser, detokenize, given, one, run, tokenize


@dataclass
class Loop:
    """What one run needs; the defaults are those of the command line."""

    draft_model: str = "tensorrt_llm"
    target_model: str = "tensorrt_llm"
    preprocessor: str = "preprocessing"
    postprocessor: str = "postprocessing"
    output_len: int = 100
    num_draft_tokens: int = 5
    use_draft_logits: bool = False
    show_draft_logits: bool = False
    show_target_logits: bool = False
    request_id: str = "1"
    end_id: int | None = None
    pad_id: int | None = None
    words: dict = field(default_factory=dict)  # BAD_WORDS_DICT, STOP_WORDS_DICT
    sampling: dict = field(default_factory=dict)  # tensors that both models get
    verbose: bool = False


def stop_sequences(ids):
    """The lists of tokens of one row of STOP_WORDS_IDS: tokens in a row, and where each word ends."""
    tokens, ends = ids.tolist()
    words, begin = [], 0
    for end in ends:
        if end < 0:
            break
        words.append(tokens[begin:end])
        begin = end
    return [word for word in words if word]


def ends_with_any(tokens, words):
    return any(tokens[-len(word) :] == word for word in words)


def only_drafted(new, drafted):
    """Whether the target stopped: where it goes on, its last token is one that the draft did not propose there."""
    return new == drafted[: len(new)]


def before(tokens, end_id):
    """The tokens up to the first end_id, and whether there is one."""
    return (tokens[: tokens.index(end_id)], True) if end_id in tokens else (tokens, False)


def generate(tokens, loop, client, model, count, common, **more):
    """(new tokens, generation logits of them or None)"""
    answer = client.infer(
        model,
        {
            "input_ids": np.array([tokens], np.int32),
            **given(
                input_lengths=(len(tokens), np.int32),
                request_output_len=(count, np.int32),
                exclude_input_in_output=(False, bool),
            ),
            **loop.sampling,
            **common,
            **more,
        },
        request_id=loop.request_id,
    ).tensors
    length = int(answer["sequence_length"].flat[0])
    new = answer["output_ids"][0, 0, len(tokens) : length].tolist()
    logits = answer.get("generation_logits")
    return new, None if logits is None else logits[0, 0, : len(new)]


def speculate(prompt, loop, target, draft):
    """The text of prompt and answer; `target` and `draft` are connections."""
    made = tokenize(
        target, [prompt], loop.output_len, loop.preprocessor, end_id=loop.end_id, pad_id=loop.pad_id, words=loop.words
    )
    tokens = made["INPUT_ID"][0].tolist()
    stops = stop_sequences(made["STOP_WORDS_IDS"][0])
    common = {
        "end_id": made["OUT_END_ID"],
        "pad_id": made["OUT_PAD_ID"],
        "bad_words_list": made["BAD_WORDS_IDS"],
        "stop_words_list": made["STOP_WORDS_IDS"],
    }
    end = len(tokens) + loop.output_len
    wants_draft_logits = loop.use_draft_logits or loop.show_draft_logits
    while len(tokens) < end:
        drafted, draft_tensors = [], {}
        ahead = min(loop.num_draft_tokens, end - len(tokens) - 1)
        if ahead > 0:
            asked = {"return_generation_logits": one(True, bool)} if wants_draft_logits else {}
            drafted, logits = generate(tokens, loop, draft, loop.draft_model, ahead, common, **asked)
            if loop.show_draft_logits:
                print("Draft logits:", logits)
            if drafted:
                draft_tensors["draft_input_ids"] = np.array([drafted], np.int32)
                if loop.use_draft_logits:
                    draft_tensors["draft_logits"] = logits[np.newaxis]
        asked = {"return_generation_logits": one(True, bool)} if loop.show_target_logits else {}
        new, logits = generate(
            tokens, loop, target, loop.target_model, len(drafted) + 1, common, **draft_tensors, **asked
        )
        if loop.show_target_logits:
            print("Target's logits of accepted tokens:", logits)
        new, ended = before(new, int(made["OUT_END_ID"].flat[0]))
        if loop.verbose:
            print(f"drafted {drafted}, the target continues with {new}")
        tokens += new
        if ended or only_drafted(new, drafted) or ends_with_any(tokens, stops):
            break
    return detokenize(target, tokens, loop.postprocessor)


def make_parser():
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("-u", "--url-target", required=True, help="gRPC address of the target's server")
    add("--url-draft", help="gRPC address of the draft's server; default: the target's")
    add("--preprocessor-model-name", default="preprocessing")
    add("--postprocessor-model-name", default="postprocessing")
    add("--draft-tensorrt-llm-model-name", default="tensorrt_llm")
    add("--target-tensorrt-llm-model-name", default="tensorrt_llm")
    add("-p", "--prompt", required=True)
    add("-b", "--beam-width", type=int, default=1)
    add("--temperature", type=float, default=1.0)
    add("--repetition-penalty", type=float)
    add("--presence-penalty", type=float)
    add("--frequency-penalty", type=float)
    add("-o", "--output-len", type=int, default=100)
    add("--num-draft-tokens", type=int, default=5, help="tokens that the draft proposes in a round")
    add("--end-id", type=int)
    add("--pad-id", type=int)
    add("--request-id", default="1")
    add("--stop-words", nargs="+", default=[])
    add("--bad-words", nargs="+", default=[])
    add("--return-draft-model-draft-logits", action="store_true", help="print the draft's logits")
    add("--return-target-model-accepted-token-logits", action="store_true", help="print the target's logits")
    add("-v", "--verbose", action="store_true")
    return parser


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    loop = Loop(
        draft_model=options.draft_tensorrt_llm_model_name,
        target_model=options.target_tensorrt_llm_model_name,
        preprocessor=options.preprocessor_model_name,
        postprocessor=options.postprocessor_model_name,
        output_len=options.output_len,
        num_draft_tokens=options.num_draft_tokens,
        show_draft_logits=options.return_draft_model_draft_logits,
        show_target_logits=options.return_target_model_accepted_token_logits,
        request_id=options.request_id,
        end_id=options.end_id,
        pad_id=options.pad_id,
        words={"BAD_WORDS_DICT": options.bad_words, "STOP_WORDS_DICT": options.stop_words},
        sampling=given(
            beam_width=(options.beam_width, np.int32),
            temperature=(options.temperature, np.float32),
            repetition_penalty=(options.repetition_penalty, np.float32),
            presence_penalty=(options.presence_penalty, np.float32),
            frequency_penalty=(options.frequency_penalty, np.float32),
        ),
        verbose=options.verbose,
    )
    with Client(options.url_target) as target, Client(options.url_draft or options.url_target) as draft:
        print("Final text:\n" + speculate(options.prompt, loop, target, draft))


if __name__ == "__main__":
    run(main)
