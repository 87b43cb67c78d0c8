#!/usr/bin/env python3
"""Tokens in, tokens out, over gRPC: asks the model tensorrt_llm without the ensemble.

    inflight_batcher_llm_client.py --text "Born in north-east France" --request-output-len 20 --streaming

The server's models `preprocessing` and `postprocessing` turn --text to tokens and the answer to text, so
--tokenizer-dir and --tokenizer-type have no effect; with --input-tokens-csv neither model is asked.
"""

import csv
import threading

import numpy as np
from tritonclient.utils import InferenceServerException

from kserve_client import Parser, adapter, add_secure_flags, detokenize, given, one, run, secure_client, tokenize


def make_parser():
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("-u", "--url", default="localhost:8001", help="the server's gRPC address")
    add_secure_flags(parser)
    add("--model-name", default="tensorrt_llm")
    add("--text", default="Born in north-east France, Soyer trained as a")
    add("--input-tokens-csv", help="file with the tokens of the prompt, instead of --text")
    add("--draft-tokens-csv", help="file with tokens that the model may accept")
    add("--output-tokens-csv", help="file with the expected tokens, for --check-output")
    add("-c", "--check-output", action="store_true", help="fail unless the new tokens are those of --output-tokens-csv")
    add("--correctness-threshold", type=float, default=1.0, help="share of tokens that have to be as expected")
    add("-S", "--streaming", action="store_true")
    add("-n", "--num-return-sequences", type=int, default=1)
    add("-b", "--beam-width", type=int, default=1)
    add("--request-output-len", "--output-len", type=int, default=16)
    add("--temperature", type=float, default=1.0)
    add("--repetition-penalty", type=float, default=1.0)
    add("--presence-penalty", type=float, default=0.0)
    add("--frequency-penalty", type=float, default=0.0)
    add("--len-penalty", type=float)
    add("--min-length", type=int)
    add("--random-seed", type=int)
    add("--top-k", type=int, default=1)
    add("--top-p", type=float, default=0.0)
    add("--end-id", type=int, default=-1, help="-1: no token ends the answer")
    add("--pad-id", type=int, default=50256)
    add("--stop-after-ms", type=int, default=0, help="stop the request after this time and expect fewer tokens")
    add("--stop-via-request-cancel", action="store_true", help="stop by cancelling the call, not by a stop request")
    add("--tokenizer-dir", help="without effect")
    add("--tokenizer-type", help="without effect")
    add("--request-id", default="")
    add("--prompt-embedding-table-path", help=".npy file")
    add("--prompt-task-id", type=int, default=0)
    add("--lora-path", help="folder with model.lora_weights.npy and model.lora_config.npy")
    add("--lora-task-id", type=int)
    add("--exclude-input-in-output", action="store_true")
    add("--return-log-probs", action="store_true")
    add("--return-context-logits", action="store_true")
    add("--return-generation-logits", action="store_true")
    add("--return-kv-cache-reuse-stats", action="store_true")
    add("--return-perf-metrics", action="store_true")
    add("--requested-outputs", nargs="+", default=[], help="exactly these tensors have to come back")
    add("--vocab-size", type=int, help="expected last dimension of logits")
    add("-v", "--verbose", action="store_true")
    return parser


def read_tokens(path):
    with open(path, newline="") as file:
        return [int(cell) for row in csv.reader(file) for cell in row if cell.strip()]


def request_of(options, prompt, integer=np.int32):
    """The inputs for one prompt. Clients of release 0.5 sent unsigned integers."""
    tensors = {
        "input_ids": np.array([prompt], integer),
        **given(
            input_lengths=(len(prompt), integer),
            request_output_len=(options.request_output_len, integer),
            beam_width=(options.beam_width, integer),
            num_return_sequences=(options.num_return_sequences if options.num_return_sequences > 1 else None, integer),
            temperature=(options.temperature, np.float32),
            repetition_penalty=(options.repetition_penalty, np.float32),
            presence_penalty=(options.presence_penalty, np.float32),
            frequency_penalty=(options.frequency_penalty, np.float32),
            len_penalty=(options.len_penalty, np.float32),
            min_length=(options.min_length, integer),
            random_seed=(options.random_seed, np.uint64),
            runtime_top_k=(options.top_k, integer),
            runtime_top_p=(options.top_p, np.float32),
            end_id=(options.end_id, np.int32),
            pad_id=(options.pad_id, np.int32),
            streaming=(options.streaming, bool),
            exclude_input_in_output=(options.exclude_input_in_output, bool),
            lora_task_id=(options.lora_task_id, np.uint64),
            **{
                name: (True if getattr(options, name) else None, bool)
                for name in (
                    "return_log_probs",
                    "return_context_logits",
                    "return_generation_logits",
                    "return_kv_cache_reuse_stats",
                    "return_perf_metrics",
                )
            },
        ),
    }
    if options.draft_tokens_csv:
        tensors["draft_input_ids"] = np.array([read_tokens(options.draft_tokens_csv)], integer)
    if options.prompt_embedding_table_path:
        table = np.load(options.prompt_embedding_table_path)
        tensors["prompt_embedding_table"] = table.reshape(1, *table.shape[-2:])
        tensors["prompt_vocab_size"] = one(table.shape[-2], np.int32)
    if options.lora_path:
        tensors |= adapter(options.lora_path)
    return tensors


class Collected:
    """The new tokens of each (sequence, beam), and the count of answers without tensors."""

    def __init__(self, options, prompt):
        self.options = options
        self.prompt = prompt
        self.tokens = {}
        self.empty_answers = 0

    def add(self, answer):
        if not answer.tensors:
            self.empty_answers += 1
            return
        if self.options.requested_outputs and set(answer.tensors) != set(self.options.requested_outputs):
            raise InferenceServerException(
                f"asked for {sorted(self.options.requested_outputs)}, got {sorted(answer.tensors)}"
            )
        sequence = int(answer.tensors["sequence_index"].flat[0]) if "sequence_index" in answer.tensors else 0
        for beam, tokens in enumerate(answer.tensors["output_ids"][0] if "output_ids" in answer.tensors else []):
            if "sequence_length" in answer.tensors:
                tokens = tokens[: answer.tensors["sequence_length"].reshape(-1)[beam]]
            key = (sequence, beam)
            if self.options.streaming:
                self.tokens[key] = self.tokens.get(key, []) + tokens.tolist()
            else:
                self.tokens[key] = tokens.tolist()[0 if self.options.exclude_input_in_output else len(self.prompt) :]
        for name in ("context_logits", "generation_logits"):
            logits = answer.tensors.get(name)
            if logits is not None:
                print(f"{name}: {list(logits.shape)}")
                if self.options.vocab_size and logits.shape[-1] != self.options.vocab_size:
                    raise InferenceServerException(f"{name}: the last dimension is not {self.options.vocab_size}")
        if "output_log_probs" in answer.tensors:
            print(f"output_log_probs: {answer.tensors['output_log_probs'].tolist()}")


class Stopper:
    """Stops the request some time after it was sent, by a request with its id or by cancelling the call."""

    def __init__(self, stream, options, tensors):
        self.sent = False
        self._stream = stream
        self._options = options
        self._tensors = {**tensors, "stop": one(True, bool)}
        self._timer = threading.Timer(options.stop_after_ms / 1000, self._stop)
        if options.stop_after_ms > 0:
            self._timer.start()

    def _stop(self):
        if self._options.stop_via_request_cancel:
            self._stream.cancel()
        else:
            self.sent = True
            self._stream.send(self._options.model_name, self._tensors, request_id=self._options.request_id)

    def end(self):
        self._timer.cancel()


def ask(client, options, tensors, collected):
    """Sends the request, and its stop when the time has come; collects what is answered."""
    with client.stream() as stream:
        stream.send(options.model_name, tensors, options.requested_outputs, options.request_id)
        stopper = Stopper(stream, options, tensors)
        lasts = 0
        try:
            for answer in stream:
                collected.add(answer)
                lasts += answer.is_last
                if lasts == 1 + stopper.sent:
                    break
        except InferenceServerException as error:
            if not (options.stop_via_request_cancel and "cancel" in str(error).lower()):
                raise
            print("Got cancellation response")
        finally:
            stopper.end()
        if stopper.sent and not collected.empty_answers:
            raise InferenceServerException("the stop request has no empty answer")


def share_as_expected(tokens, expected):
    return sum(a == b for a, b in zip(tokens, expected)) / max(len(tokens), len(expected), 1)


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    if options.stop_after_ms > 0 and not options.request_id:
        options.request_id = "1"  # a stop request names the request that it stops
    if options.check_output and not options.output_tokens_csv:
        raise SystemExit("--check-output needs --output-tokens-csv")
    with secure_client(options) as client:
        if options.input_tokens_csv:
            prompt = read_tokens(options.input_tokens_csv)
        else:
            prompt = tokenize(client, [options.text])["INPUT_ID"][0].tolist()
        print("Input sequence:", prompt)
        collected = Collected(options, prompt)
        ask(client, options, request_of(options, prompt), collected)
        print("Got completed request", flush=True)
        for (sequence, beam), tokens in sorted(collected.tokens.items()):
            print(f"Sequence {sequence}, output beam {beam}: {tokens}")
            if not options.input_tokens_csv and tokens:
                print(f"Text: {detokenize(client, tokens)}")
    if options.stop_after_ms > 0 and any(len(t) >= options.request_output_len for t in collected.tokens.values()):
        print("the request was not stopped: it has all its tokens")
        return 1
    if options.check_output:
        expected = read_tokens(options.output_tokens_csv)
        for key, tokens in sorted(collected.tokens.items()):
            share = share_as_expected(tokens, expected)
            print(f"share of tokens as expected: {share:.3f}")
            if share < options.correctness_threshold:
                print(f"sequence and beam {key}: expected {expected}, but got {tokens}")
                return 1
    return 0


if __name__ == "__main__":
    run(main)
