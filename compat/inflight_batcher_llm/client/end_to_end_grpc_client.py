#!/usr/bin/env python3
"""Text in, text out, over gRPC.

    end_to_end_grpc_client.py -p "What is machine learning?" -o 20 --streaming
"""

import json

import numpy as np

from kserve_client import Client, Parser, adapter, given, many, run


def text_tensors(texts, max_tokens, streaming, beam_width=1, temperature=1.0, exclude_input_in_output=False, **more):
    """The inputs of a text model for a batch; `more`: `name=(value, dtype)`, left out where the value is None."""
    rows = len(texts)
    return {
        "text_input": np.array([[text.encode()] for text in texts], object),
        **given(
            rows,
            max_tokens=(max_tokens, np.int32),
            stream=(streaming, bool),
            beam_width=(beam_width, np.int32),
            temperature=(temperature, np.float32),
            exclude_input_in_output=(exclude_input_in_output, bool),
            **more,
        ),
    }


def make_parser():
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("-u", "--url", default="localhost:8001", help="the server's gRPC address")
    add("-p", "--prompt", required=True, help="a text, or a JSON list of texts: a batch")
    add("--model-name", default="ensemble", choices=["ensemble", "tensorrt_llm_bls"])
    add("-S", "--streaming", action="store_true")
    add("-n", "--num-return-sequences", type=int, default=1)
    add("-b", "--beam-width", type=int, default=1)
    add("-o", "--output-len", type=int, default=100, help="most tokens of an answer")
    add("--request-id", default="")
    add("--temperature", type=float, default=1.0)
    add("--top-k", type=int)
    add("--top-p", type=float)
    add("--seed", type=int)
    add("--min-length", type=int)
    add("--repetition-penalty", type=float)
    add("--presence-penalty", type=float)
    add("--frequency-penalty", type=float)
    add("--length-penalty", type=float)
    add("--stop-words", nargs="+", default=[])
    add("--bad-words", nargs="+", default=[])
    add("--embedding-bias-words", nargs="+", default=[])
    add("--embedding-bias-weights", nargs="+", type=float, default=[])
    add("--end-id", type=int)
    add("--pad-id", type=int)
    add("--exclude-input-in-output", action="store_true")
    add("--overwrite-output-text", action="store_true", help="a streamed text replaces the one before it")
    add("--return-log-probs", action="store_true")
    add("--return-context-logits", action="store_true")
    add("--return-generation-logits", action="store_true")
    add("--return-kv-cache-reuse-stats", action="store_true")
    add("--return-perf-metrics", action="store_true")
    add("--guided-decoding-guide-type")
    add("--guided-decoding-guide")
    add("--lora-path", help="folder with model.lora_weights.npy and model.lora_config.npy")
    add("--lora-task-id", type=int)
    add("--batch-inputs", action="store_true", help="the prompt is a JSON list")
    add("--check-outputs", action="store_true", help="fail unless the texts are --expected-outputs")
    add("--expected-outputs", nargs="+", default=[])
    add("-v", "--verbose", action="store_true")
    return parser


def prompts_of(options):
    """The texts of --prompt."""
    try:
        parsed = json.loads(options.prompt)
    except ValueError:
        parsed = None
    if isinstance(parsed, list) and parsed and all(isinstance(text, str) for text in parsed):
        return parsed
    if options.batch_inputs:
        raise SystemExit("--batch-inputs: --prompt has to be a JSON list of texts")
    return [options.prompt]


def request_of(options, texts):
    """(inputs, requested outputs)"""
    rows = len(texts)
    stats = {
        "return_log_probs": (["output_log_probs", "cum_log_probs"], options.return_log_probs),
        "return_context_logits": (["context_logits"], options.return_context_logits),
        "return_generation_logits": (["generation_logits"], options.return_generation_logits),
        "return_kv_cache_reuse_stats": (
            ["kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"],
            options.return_kv_cache_reuse_stats,
        ),
        "return_perf_metrics": (
            [
                "kv_cache_alloc_new_blocks",
                "kv_cache_reused_blocks",
                "kv_cache_alloc_total_blocks",
                "arrival_time_ns",
                "first_scheduled_time_ns",
                "first_token_time_ns",
                "last_token_time_ns",
                "acceptance_rate",
                "total_accepted_draft_tokens",
                "total_draft_tokens",
            ],
            options.return_perf_metrics,
        ),
    }
    tensors = text_tensors(
        texts,
        options.output_len,
        options.streaming,
        options.beam_width,
        options.temperature,
        options.exclude_input_in_output,
        num_return_sequences=(options.num_return_sequences if options.num_return_sequences > 1 else None, np.int32),
        top_k=(options.top_k, np.int32),
        top_p=(options.top_p, np.float32),
        random_seed=(options.seed, np.uint64),
        min_length=(options.min_length, np.int32),
        repetition_penalty=(options.repetition_penalty, np.float32),
        presence_penalty=(options.presence_penalty, np.float32),
        frequency_penalty=(options.frequency_penalty, np.float32),
        length_penalty=(options.length_penalty, np.float32),
        end_id=(options.end_id, np.int32),
        pad_id=(options.pad_id, np.int32),
        guided_decoding_guide_type=(options.guided_decoding_guide_type, object),
        guided_decoding_guide=(options.guided_decoding_guide, object),
        lora_task_id=(options.lora_task_id, np.uint64),
        **{name: (True if asked else None, bool) for name, (_, asked) in stats.items()},
    )
    for name, words, dtype in (
        ("stop_words", options.stop_words, object),
        ("bad_words", options.bad_words, object),
        ("embedding_bias_words", options.embedding_bias_words, object),
        ("embedding_bias_weights", options.embedding_bias_weights, np.float32),
    ):
        if words:
            tensors[name] = many(words, dtype, rows)
    if options.lora_path:
        tensors |= adapter(options.lora_path)
    outputs = ["text_output"]
    for names, asked in stats.values():
        outputs += [name for name in names if asked and name not in outputs]
    if options.num_return_sequences > 1:
        outputs.append("sequence_index")
    if rows > 1:
        outputs.append("batch_index")
    return tensors, outputs


def index_of(answer, name):
    return int(answer.tensors[name].flat[0]) if name in answer.tensors else 0


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    texts = prompts_of(options)
    tensors, outputs = request_of(options, texts)
    collected = {}  # the text of each (row, sequence, beam)
    with Client(options.url, verbose=options.verbose) as client:
        for answer in client.stream_infer(options.model_name, tensors, outputs, options.request_id):
            row, sequence = index_of(answer, "batch_index"), index_of(answer, "sequence_index")
            for beam, text in enumerate(answer.texts("text_output")):
                key = (row, sequence, beam)
                appends = options.streaming and not options.overwrite_output_text
                collected[key] = collected.get(key, "") + text if appends else text
                if options.streaming:
                    print(f"[{row}, {sequence}, beam {beam}] {text!r}", flush=True)
            for name, value in answer.tensors.items():
                if name not in ("text_output", "batch_index", "sequence_index"):
                    print(f"{name}: {value.tolist() if value.size <= 64 else value.shape}")
    results = [collected[key] for key in sorted(collected)]
    for (row, sequence, beam), text in zip(sorted(collected), results):
        print(f"Input: {texts[row]}\nSequence {sequence}, output beam {beam}: {text}")
    if options.check_outputs and results != options.expected_outputs:
        print(f"expected {options.expected_outputs}, but the answer is {results}")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
