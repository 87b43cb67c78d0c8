"""What the clients of Triton's TensorRT-LLM backend silently rely on, asked of the real server with Triton's own client.

    tools/test_python tests/e2e/triton_test.py build/dev/tandem
"""

import json
import os
import signal
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http
from harness import QUESTION, answer_key
from triton import (
    DRAFT,
    TARGET,
    Stream,
    TritonServer,
    TritonTest,
    is_final,
    make_repository,
    named,
    names,
    question,
    row,
    tensors,
    texts,
    token_request,
)
from tritonclient.utils import serialize_byte_tensor, shared_memory, triton_to_np_dtype

DEFINITION = answer_key()["tandem"]
VOCABULARY = 8192
ALL_FIVE = ["ensemble", "preprocessing", "postprocessing", TARGET, "tensorrt_llm_bls"]


def client(name):
    return f"inflight_batcher_llm/client/{name}.py"


def tool(name):
    return f"tools/inflight_batcher_llm/{name}.py"


class PairTest(TritonTest):
    """Models that are not decoupled, with a draft, as the guide for draft and target fills them."""

    repository = {"exclude_input_in_output": True}

    def test_output_ids_are_the_first_output_and_have_three_dimensions(self):
        for answer in (self.infer(TARGET, token_request([1, 2, 3])), self.http_infer(TARGET, token_request([1, 2, 3]))):
            first = answer.get_response()
            first = first["outputs"][0]["name"] if isinstance(first, dict) else first.outputs[0].name
            self.assertEqual(first, "output_ids")
            ids, length = answer.as_numpy("output_ids"), answer.as_numpy("sequence_length")
            self.assertEqual((ids.dtype, ids.shape[:2], length.shape), (np.int32, (1, 1), (1, 1)))
            self.assertEqual(ids.shape[2], length.item())

    def test_shared_memory_needs_an_option(self):
        for client in (self.grpc, self.http):
            error = self.refused(client.register_system_shared_memory, "a", "/a", 8)
            self.assertIn("--allow_shared_memory", error.message())

    def test_the_id_of_a_request_comes_back(self):
        for model, values in ((TARGET, token_request([1, 2])), ("ensemble", question(QUESTION)),
                              ("preprocessing", {"QUERY": texts("x"), "REQUEST_OUTPUT_LEN": row(1, np.int32)})):  # fmt: skip
            self.assertEqual(self.infer(model, values, request_id="the one").get_response().id, "the one")
            for binary in (True, False):
                answer = self.http_infer(model, values, binary=binary, request_id="the one").get_response()
                self.assertEqual(answer["id"], "the one")
            self.assertEqual(self.infer(model, values).get_response().id, "")
        _, reply = self.server.generate(QUESTION, id="the one")
        self.assertEqual(reply["id"], "the one")

    def test_every_response_on_a_stream_says_whether_it_is_the_last(self):
        stream = self.stream()
        for number in range(3):
            stream.send("ensemble", question(QUESTION), request_id=str(number))
        for number in range(3):
            response = stream.next()
            self.assertTrue(is_final(response))
            self.assertEqual(response.get_response().id, str(number))

    def test_inputs_without_elements_are_accepted(self):
        empty = np.zeros([1, 2, 0], np.int32)
        plain = self.infer(TARGET, token_request([1, 2, 3]))
        for call in (self.infer, self.http_infer):
            given = call(TARGET, token_request([1, 2, 3], bad_words_list=empty, stop_words_list=empty,
                                               embedding_bias=np.zeros([1, 0], np.float32)))  # fmt: skip
            self.assertEqual(given.as_numpy("output_ids").tolist(), plain.as_numpy("output_ids").tolist())
            answer = call("ensemble", question(QUESTION, 60, embedding_bias_words=np.zeros([1, 0], object),
                                               embedding_bias_weights=np.zeros([1, 0], np.float32)))  # fmt: skip
            self.assertEqual(answer.as_numpy("text_output").tolist(), [DEFINITION.encode()])
        bytes_of_nothing = texts("")
        answer = self.infer("ensemble", question(QUESTION, 60, bad_words=bytes_of_nothing, stop_words=bytes_of_nothing))
        self.assertEqual(answer.as_numpy("text_output").tolist(), [DEFINITION.encode()])

    def test_without_a_list_all_outputs_come_and_with_one_exactly_those(self):
        for outputs in (["sequence_length"], ["output_ids"], ["sequence_length", "output_ids"]):
            self.assertEqual(set(names(self.infer(TARGET, token_request([1, 2]), outputs))), set(outputs))
            answer = self.http_infer(TARGET, token_request([1, 2]), outputs).get_response()
            self.assertEqual({output["name"] for output in answer["outputs"]}, set(outputs))
        self.assertLessEqual({"output_ids", "sequence_length"}, set(names(self.infer(TARGET, token_request([1, 2])))))
        unasked = self.infer(TARGET, token_request([1, 2], 3))
        for name, shape in (("cum_log_probs", [1, 1]), ("output_log_probs", [1, 1, 3]), ("context_logits", [1, 1, 1]),
                            ("generation_logits", [1, 1, 1, 1])):  # fmt: skip
            self.assertEqual(unasked.as_numpy(name).tolist(), np.zeros(shape).tolist(), name)
        self.assertEqual(names(self.infer("ensemble", question(QUESTION), ["text_output"])), ["text_output"])
        self.assertIn("text_output", names(self.infer("ensemble", question(QUESTION))))
        error = self.refused(self.infer, TARGET, token_request([1, 2]), ["nonsense"])
        self.assertIn("nonsense", error.message())

    def test_a_raw_model_of_a_pair_answers_with_the_prompt_although_the_repository_excludes_it(self):
        prompt = self.tokens(QUESTION)
        for model in (TARGET, DRAFT):
            ids = self.infer(model, token_request(prompt)).as_numpy("output_ids")[0, 0].tolist()
            self.assertEqual(ids[: len(prompt)], prompt)
            self.assertGreater(len(ids), len(prompt))
            excluded = self.infer(model, token_request(prompt, exclude_input_in_output=row(True, bool)))
            self.assertEqual(excluded.as_numpy("output_ids")[0, 0].tolist(), ids[len(prompt) :])

    def test_the_configuration_rules_what_the_text_models_answer(self):
        for model in ("ensemble", "tensorrt_llm_bls"):
            answer = self.infer(model, question(QUESTION, 60)).as_numpy("text_output")
            self.assertEqual(answer.tolist(), [DEFINITION.encode()])
            answer = self.infer(model, question(QUESTION, 60, exclude_input_in_output=row(False, bool)))
            self.assertEqual(answer.as_numpy("text_output").tolist(), [(QUESTION + DEFINITION).encode()])

    def test_preprocessing_answers_in_the_shapes_that_the_speculative_client_takes_apart(self):
        answer = self.infer("preprocessing", {
            "QUERY": texts("one", "a longer text"), "REQUEST_OUTPUT_LEN": np.array([[3], [4]], np.int32),
            "STOP_WORDS_DICT": np.array([[b"stop", b""], [b"on the way", b"x"]], object),
            "BAD_WORDS_DICT": texts("", ""), "END_ID": np.array([[2], [2]], np.int32),
            "PAD_ID": np.array([[7], [7]], np.int32)})  # fmt: skip
        ids, lengths = answer.as_numpy("INPUT_ID"), answer.as_numpy("REQUEST_INPUT_LEN")
        self.assertEqual((ids.shape, lengths.shape), ((2, lengths.max()), (2, 1)))
        self.assertEqual(set(ids[0, lengths[0, 0] :].tolist()), {7})
        self.assertEqual(answer.as_numpy("OUT_END_ID").tolist(), [[2], [2]])
        self.assertEqual(answer.as_numpy("OUT_PAD_ID").tolist(), [[7], [7]])
        self.assertEqual(answer.as_numpy("BAD_WORDS_IDS").tolist(), [[[0], [-1]]] * 2)
        stop = answer.as_numpy("STOP_WORDS_IDS")
        self.assertEqual(stop.shape[:2], (2, 2))
        words, ends = stop[1]
        self.assertEqual([end for end in ends if end >= 0], sorted(end for end in ends if end >= 0))
        self.assertEqual(len([end for end in ends if end >= 0]), 2)
        self.assertTrue(all(words[: ends.max()] > 0))
        without = self.infer("preprocessing", {"QUERY": texts("x"), "REQUEST_OUTPUT_LEN": row(1, np.int32)})
        self.assertEqual(without.as_numpy("STOP_WORDS_IDS").shape, (1, 2, 0))

    def test_postprocessing_passes_log_probabilities_and_logits_on(self):
        values = {
            "TOKENS_BATCH": np.array([[self.tokens(DEFINITION)[1:]]], np.int32),
            "SEQUENCE_LENGTH": row(len(self.tokens(DEFINITION)) - 1, np.int32),
        }
        self.assertEqual(self.infer("postprocessing", values).as_numpy("OUTPUT").tolist(), [DEFINITION.encode()])
        more = {
            "CUM_LOG_PROBS": row(-1.5, np.float32),
            "OUTPUT_LOG_PROBS": np.full([1, 1, 4], -0.5, np.float32),
            "CONTEXT_LOGITS": np.ones([1, 2, 3], np.float32),
            "GENERATION_LOGITS": np.ones([1, 1, 2, 3], np.float32),
        }
        answer = self.infer("postprocessing", {**values, **more})
        for name, value in more.items():
            self.assertEqual(answer.as_numpy(f"OUT_{name}").tolist(), value.tolist())

    def test_signed_and_unsigned_integers_are_the_same(self):
        prompt = self.tokens(QUESTION)
        expected = self.infer(TARGET, token_request(prompt)).as_numpy("output_ids").tolist()
        for dtype in (np.uint32, np.int64):
            values = {name: value.astype(dtype) for name, value in token_request(prompt).items()}
            for call in (self.infer, self.http_infer):
                self.assertEqual(call(TARGET, values).as_numpy("output_ids").tolist(), expected)
            answer = self.infer("ensemble", {**question(QUESTION), "max_tokens": row(60, dtype)})
            self.assertEqual(answer.as_numpy("text_output").tolist(), [DEFINITION.encode()])

    def test_old_and_new_names_of_inputs_are_the_same(self):
        for old, new, value in (("min_length", "min_tokens", row(30, np.int32)), ("random_seed", "seed", row(7, np.uint64))):
            found = [
                self.infer("ensemble", question("It is", 30, temperature=row(0.9, np.float32), top_k=row(50, np.int32),
                                                **{"random_seed": row(7, np.uint64)} if old != "random_seed" else {},
                                                **{name: value})).as_numpy("text_output").tolist()
                for name in (old, new)
            ]  # fmt: skip
            self.assertEqual(*found)

    def test_without_top_k_and_top_p_the_text_is_the_same_at_any_temperature(self):
        found = {
            self.infer(model, question(QUESTION, 60, temperature=row(heat, np.float32))).as_numpy("text_output").item()
            for model in ("ensemble", "tensorrt_llm_bls") for heat in (0.1, 1.0, 5.0)
        }  # fmt: skip
        self.assertEqual(found, {DEFINITION.encode()})

    def test_an_end_id_of_minus_one_and_a_foreign_pad_id_are_accepted(self):
        values = token_request(self.tokens(QUESTION), 40, end_id=row(-1, np.int32), pad_id=row(50256, np.int32),
                               exclude_input_in_output=row(True, bool))  # fmt: skip
        self.assertEqual(self.infer(TARGET, values).as_numpy("sequence_length").item(), 40)

    def test_tokens_outside_of_the_vocabulary_are_refused_and_nothing_breaks(self):
        for tokens in ([1, 2**31 - 1], [-5, 3], [VOCABULARY * 100]):
            error = self.refused(self.infer, TARGET, token_request(tokens))
            self.assertIn("INVALID_ARGUMENT", error.status())
        lists = {name: np.array([[[VOCABULARY * 100], [1]]], np.int32) for name in ("stop_words_list", "bad_words_list")}
        for name, tokens in {**lists, "draft_input_ids": row(VOCABULARY * 100, np.int32)}.items():
            error = self.refused(self.infer, TARGET, token_request([1, 2], **{name: tokens}))
            self.assertIn(f"{name} holds token", error.message())
        self.assertEqual(self.server.generate(QUESTION)[1]["text_output"], DEFINITION)

    def test_the_benchmarks_random_tokens_are_answered(self):
        output = self.run_client(
            tool("benchmark_core_model"), "-u", self.server.grpc_url, "--max-input-len", 40, "--num-requests", 20,
            "token-norm-dist", "--input-mean", 20, "--input-stdev", 5, "--output-mean", 8, "--output-stdev", 2,
        )  # fmt: skip
        self.assertRegex(output, r"(?m)^requests +20$")

    def test_decoder_inputs_of_preprocessing_may_be_passed_on(self):
        made = self.infer("preprocessing", {"QUERY": texts(QUESTION), "REQUEST_OUTPUT_LEN": row(20, np.int32)})
        values = token_request(made.as_numpy("INPUT_ID")[0].tolist(), 20,
                               decoder_input_ids=made.as_numpy("DECODER_INPUT_ID"),
                               decoder_input_lengths=made.as_numpy("REQUEST_DECODER_INPUT_LEN"))  # fmt: skip
        self.assertTrue(self.infer(TARGET, values).as_numpy("sequence_length").item())

    def test_logits_have_a_row_for_each_token(self):
        prompt = self.tokens(QUESTION)
        values = token_request(prompt, 5, return_context_logits=row(True, bool), return_generation_logits=row(True, bool))
        for call in (self.infer, self.http_infer):
            answer = call(TARGET, values)
            context, generation = answer.as_numpy("context_logits"), answer.as_numpy("generation_logits")
            self.assertEqual(context.shape[:2], (1, len(prompt)))
            self.assertEqual(generation.shape, (1, 1, 5, context.shape[2]))
            drawn = answer.as_numpy("output_ids")[0, 0, len(prompt) :].tolist()
            self.assertEqual(generation[0, 0].argmax(axis=1).tolist(), drawn)

    def test_log_probabilities_come_where_they_are_asked_for_and_else_are_zeros(self):
        for asked in (True, False):
            answer = self.infer("ensemble", question(QUESTION, 12, return_log_probs=row(asked, bool)))
            each, total = answer.as_numpy("output_log_probs"), answer.as_numpy("cum_log_probs")
            self.assertEqual((each.shape, total.shape), ((1, 1, 12), (1, 1)))
            self.assertEqual(bool(each.any()), asked)
            self.assertAlmostEqual(float(total.sum()), float(each.sum()), places=3)

    def test_streaming_a_model_that_is_not_decoupled_is_tritons_error(self):
        error = self.refused(self.infer, TARGET, token_request([1], streaming=row(True, bool)))
        self.assertIn("Streaming is only supported if model is deployed using decoupled mode.", error.message())
        stream = self.stream()
        stream.send("ensemble", question(QUESTION, stream=row(True, bool)), request_id="a")
        self.assertIn("decoupled", self.refused(stream.next).message())
        stream.send("ensemble", question(QUESTION), request_id="b")
        self.assertEqual(stream.next().get_response().id, "b")

    def test_a_batch_is_answered_in_one_response_that_pads_with_minus_one(self):
        values = {"input_ids": np.array([[1, 2], [1, 3]], np.int32), "input_lengths": np.array([[2], [2]], np.int32),
                  "request_output_len": np.array([[4], [7]], np.int32), "end_id": np.array([[-1], [-1]], np.int32)}  # fmt: skip
        for call in (self.infer, self.http_infer):
            answer = call(TARGET, values)
            self.assertEqual(answer.as_numpy("sequence_length").tolist(), [[6], [9]])
            ids = answer.as_numpy("output_ids")
            self.assertEqual(ids.shape, (2, 1, 9))
            self.assertEqual(ids[0, 0, 6:].tolist(), [-1] * 3)

    def test_the_errors_of_requests_have_tritons_words(self):
        cases = (
            ("nowhere", question(QUESTION), "Request for unknown model: 'nowhere' is not found"),
            ("ensemble", {"text_input": texts("x")}, "missing required input(s) ['max_tokens']"),
            ("ensemble", {"text_input": texts("x"), "max_tokens": row(1.0, np.float32)}, "data-type is 'FP32'"),
            (TARGET, {**token_request([1]), "temperature": np.ones([1, 2], np.float32)}, "unexpected shape for input"),
            ("ensemble", {"text_input": texts(*"abcde"), "max_tokens": np.ones([5, 1], np.int32)}, "batch-size must be <= 4"),
        )
        for model, values, words in cases:
            for call in (self.infer, self.http_infer):
                self.assertIn(words, self.refused(call, model, values).message())

    def test_models_describe_themselves(self):
        for model in [*ALL_FIVE, DRAFT]:
            self.assertTrue(self.grpc.is_model_ready(model) and self.http.is_model_ready(model))
            over_http, over_grpc = self.http.get_model_metadata(model), self.grpc.get_model_metadata(model, as_json=True)
            self.assertEqual(over_http["name"], model)
            self.assertEqual([i["name"] for i in over_http["inputs"]], [i["name"] for i in over_grpc["inputs"]])
            config = self.http.get_model_config(model)
            self.assertEqual(config["max_batch_size"], 4)
            self.assertEqual(self.grpc.get_model_config(model).config.max_batch_size, 4)
            self.assertFalse(config.get("model_transaction_policy", {}).get("decoupled", False))
        steps = [step["model_name"] for step in self.http.get_model_config("ensemble")["ensemble_scheduling"]["step"]]
        self.assertEqual(steps, ["preprocessing", TARGET, "postprocessing"])

    def test_statistics_count_requests(self):
        def successes():
            stats = self.http.get_inference_statistics("ensemble")["model_stats"][0]
            return int(stats["inference_stats"]["success"]["count"])

        before = successes()
        for _ in range(3):
            self.infer("ensemble", question(QUESTION))
        self.assertEqual(successes(), before + 3)
        self.assertEqual(self.grpc.get_inference_statistics("ensemble").model_stats[0].inference_count, before + 3)

    def test_the_speculative_client_ends_with_the_targets_text(self):
        for more in ([], ["--num-draft-tokens", 9], ["--return-draft-model-draft-logits"], ["--stop-words", "zzz"]):
            output = self.run_client(
                client("e2e_grpc_speculative_decoding_client"), "--url-target", self.server.grpc_url,
                "--draft-tensorrt-llm-model-name", DRAFT, "-o", 60, "-p", QUESTION, *more,
            )  # fmt: skip
            self.assertIn(f"Final text:\n{QUESTION}{DEFINITION}", output)

    def compare(self, *more):
        dataset = self.folder / "data.json"
        words = sorted(answer_key())[:200:20]
        dataset.write_text(json.dumps([
            {"input": f'What does "{word}" mean?', "instruction": "", "output": " ".join(["x"] * 20)} for word in words
        ]))  # fmt: skip
        return self.run_client(
            tool("speculative_decoding_test"), "--max-input-len", 200, "--dataset", dataset,
            *(part for which in ("control", "target", "draft") for part in (f"--url-{which}", self.server.grpc_url)),
            "--draft-tensorrt-llm-model-name", DRAFT, "--num-draft-tokens", 4, *more,
        )  # fmt: skip

    def test_speculative_texts_equal_those_of_the_target(self):
        for more in (["--execute-bls-speculative-decoding"], []):
            self.assertIn("failed/total: 0/10", self.compare(*more))

    def test_speculation_by_logits_answers_every_prompt(self):
        for more in (["--execute-bls-speculative-decoding"], []):
            output = self.compare("--use-draft-logits", "--disable-output-comparison", *more)
            self.assertIn("failed/total: 0/10", output)

    def test_the_benchmark_of_0_5_is_answered(self):
        dataset = self.folder / "identity.json"
        dataset.write_text(json.dumps([{"input": QUESTION, "instruction": "", "output": "a b c d"}] * 3))
        output = self.run_client(tool("identity_test"), "-u", self.server.grpc_url, "--max_input_len", 100,
                                 "dataset", "--dataset", dataset)  # fmt: skip
        self.assertRegex(output, r"(?m)^requests +3$")

    def test_the_token_client_is_answered_whole(self):
        prompt = self.folder / "tokens.csv"
        prompt.write_text(",".join(map(str, self.tokens(QUESTION))))
        self.run_client(
            client("inflight_batcher_llm_client"), "-u", self.server.grpc_url, "--input-tokens-csv", prompt,
            "--request-output-len", 8, "--requested-outputs", "output_ids", "sequence_length",
        )  # fmt: skip


class DecoupledTest(TritonTest):
    """Decoupled models without a draft, as the templates of 0.5 are filled."""

    repository = {"decoupled": True, "draft": False, "batch": 64}

    def test_a_streams_responses_carry_new_tokens_without_the_prompt_and_the_last_is_marked(self):
        prompt = self.tokens(QUESTION)
        stream = self.stream()
        stream.send(TARGET, token_request(prompt, 10, end_id=row(-1, np.int32)), request_id="whole")
        whole = stream.until_final()[-1].as_numpy("output_ids")[0, 0].tolist()
        stream.send(TARGET, token_request(prompt, 10, end_id=row(-1, np.int32), streaming=row(True, bool)), request_id="parts")
        parts = stream.until_final()
        self.assertEqual({part.get_response().id for part in parts}, {"parts"})
        self.assertEqual([is_final(part) for part in parts], [False] * (len(parts) - 1) + [True])
        new = [token for part in parts for token in part.as_numpy("output_ids")[0, 0].tolist()]
        self.assertEqual(new, whole[len(prompt) :] if whole[: len(prompt)] == prompt else whole)
        self.assertEqual(len(new), 10)

    def test_streamed_texts_join_to_the_whole_one(self):
        for model in ("ensemble", "tensorrt_llm_bls"):
            stream = self.stream()
            stream.send(model, question(QUESTION, 60, stream=row(True, bool)), request_id="1")
            parts = [part.as_numpy("text_output").item().decode() for part in stream.until_final()]
            self.assertEqual("".join(parts), DEFINITION)
            self.assertGreater(len(parts), 5)
            stream.stop()

    def test_an_empty_last_response_comes_to_those_who_want_it(self):
        stream = self.stream()
        stream.send("ensemble", question(QUESTION), request_id="1", enable_empty_final_response=True)
        texts_of = [part for part in stream.until_final() if names(part)]
        self.assertEqual(len(texts_of), 1)

    def test_a_call_for_one_response_is_unimplemented(self):
        for model in ("ensemble", TARGET, "tensorrt_llm_bls"):
            error = self.refused(self.infer, model, question(QUESTION))
            self.assertEqual(error.status(), "StatusCode.UNIMPLEMENTED")
            self.assertIn("ModelInfer RPC doesn't support models with decoupled transaction policy", error.message())
        error = self.refused(self.http_infer, "ensemble", question(QUESTION))
        self.assertIn("HTTP end point doesn't support models with decoupled transaction policy", error.message())
        self.assertEqual(self.server.generate(QUESTION)[0], 200)

    def test_rows_of_a_batch_are_answered_by_their_index(self):
        stream = self.stream()
        prompts = [self.tokens(QUESTION), self.tokens(QUESTION)]
        stream.send(TARGET, {"input_ids": np.array(prompts, np.int32), "input_lengths": np.full([2, 1], len(prompts[0]), np.int32),
                             "request_output_len": np.array([[3], [5]], np.int32)}, request_id="1")  # fmt: skip
        responses = stream.until_final()
        found = {part.as_numpy("batch_index").item(): part.as_numpy("sequence_length").item() for part in responses}
        self.assertEqual(set(found), {0, 1})
        self.assertEqual(found[1] - found[0], 2)

    def test_a_stop_request_ends_the_one_of_its_id_early_and_has_no_outputs(self):
        stream = self.stream()
        values = token_request(self.tokens(QUESTION), 900, end_id=row(-1, np.int32))
        stream.send(TARGET, {**values, "streaming": row(True, bool)}, request_id="7")
        self.assertFalse(is_final(stream.next()))
        stream.send(TARGET, {**values, "stop": row(True, bool)}, request_id="7")
        parts = []
        while sum(map(is_final, parts)) < 2:
            parts.append(stream.next())
        self.assertEqual({part.get_response().id for part in parts}, {"7"})
        self.assertEqual(sum(names(part) == [] for part in parts), 1)
        self.assertLess(sum(part.as_numpy("output_ids").size for part in parts if names(part)), 900)

    def test_cancelling_a_stream_frees_its_memory(self):
        stream = Stream(self.grpc)
        values = token_request(self.tokens(QUESTION), 900, end_id=row(-1, np.int32), streaming=row(True, bool))
        stream.send(TARGET, values, request_id="7")
        stream.next()
        stream.stop(cancel=True)
        for _ in range(100):
            if self.server.blocks_in_use() == 0:
                return
            time.sleep(0.1)
        self.fail("blocks are still in use 10 s after the stream was cancelled")

    def test_generate_stream_sends_an_event_for_each_token(self):
        parts = self.server.stream(QUESTION, max_tokens=12)
        self.assertEqual(len(parts), 12)
        self.assertTrue(DEFINITION.startswith("".join(parts)))

    def test_the_bodies_that_benchmarks_send_are_answered(self):
        body = {"text_input": QUESTION, "max_tokens": 16, "exclude_input_in_output": True, "stream": True, "min_length": 16}
        self.assertEqual(len(self.server.events("/v2/models/ensemble/generate_stream", body)), 16)
        tokens = self.tokens(QUESTION)
        body = {"input_ids": tokens, "input_lengths": len(tokens), "request_output_len": 16, "streaming": True, "min_length": 16,
                "end_id": 2}  # fmt: skip
        events = self.server.events(f"/v2/models/{TARGET}/generate_stream", body)
        self.assertEqual(len(sum((np.ravel(json.loads(event)["output_ids"]).tolist() for event in events), [])), 16)

    def test_the_text_clients_are_answered(self):
        for model in ("ensemble", "tensorrt_llm_bls"):
            for more in ([], ["-S"]):
                output = self.run_client(
                    client("end_to_end_grpc_client"), "-u", self.server.grpc_url, "-p", QUESTION, "-o", 60,
                    "--model-name", model, "--exclude-input-in-output", "--return-log-probs", *more,
                )  # fmt: skip
                self.assertIn(f"output beam 0: {DEFINITION}\n", output)
        output = self.run_client(
            tool("end_to_end_streaming_client"), "-u", self.server.grpc_url, "-p", QUESTION, "--output_len", 60,
            "--streaming", "--tokenizer_type", "llama", "--max_input_len", 90,
        )  # fmt: skip
        self.assertEqual(output, DEFINITION + "\n")

    def test_the_text_client_gets_batches_and_several_sequences(self):
        output = self.run_client(
            client("end_to_end_grpc_client"), "-u", self.server.grpc_url, "-p", json.dumps([QUESTION] * 3), "-o", 60,
            "--batch-inputs", "--exclude-input-in-output",
        )  # fmt: skip
        self.assertEqual(output.count(DEFINITION), 3, output)
        output = self.run_client(
            client("end_to_end_grpc_client"), "-u", self.server.grpc_url, "-p", QUESTION, "-o", 60, "-n", 2,
            "--exclude-input-in-output",
        )  # fmt: skip
        self.assertEqual(output.count(DEFINITION), 2, output)

    def test_the_token_client_streams_stops_and_cancels(self):
        prompt = self.folder / "tokens.csv"
        prompt.write_text(",".join(map(str, self.tokens(QUESTION))))
        for more in ([], ["--stop-after-ms", 50], ["--stop-after-ms", 50, "--stop-via-request-cancel"]):
            self.run_client(
                client("inflight_batcher_llm_client"), "-u", self.server.grpc_url, "--input-tokens-csv", prompt,
                "--request-output-len", 900, "-S", *more,
            )  # fmt: skip

    def test_health_and_log_settings_are_answered(self):
        self.assertTrue(self.grpc.is_server_live() and self.grpc.is_server_ready())
        self.assertTrue(self.http.is_server_live() and self.http.is_server_ready())
        self.assertEqual(self.server.request("GET", "/v2/health/ready")[::2], (200, ""))
        status, settings = self.server.post("/v2/logging", {"log_verbose_level": 1})
        self.assertEqual((status, settings["log_verbose_level"]), (200, 1))
        self.server.post("/v2/logging", {"log_verbose_level": 0})


class AloneTest(TritonTest):
    """A model without a draft, whose raw answers obey the repository as the texts do."""

    repository = {"draft": False, "exclude_input_in_output": True}

    def test_the_raw_models_the_ensemble_and_bls_agree(self):
        dataset = self.folder / "equal.json"
        dataset.write_text(json.dumps([{"input": QUESTION, "instruction": "", "output": "a b c d"}] * 3))
        for protocol, url in (("grpc", self.server.grpc_url), ("http", self.server.http_url)):
            output = self.run_client(
                tool("end_to_end_test"), "-i", protocol, "-u", url, "-c", 4, "--max-input-len", 100, "--dataset", dataset,
                "--test-bls", "--return-log-probs", "--return-context-logits", "--return-generation-logits",
            )  # fmt: skip
            self.assertIn("[INFO] Functionality test succeeded.", output)

    def test_the_repository_excludes_the_prompt_from_raw_answers_too(self):
        prompt = self.tokens(QUESTION)
        ids = self.infer(TARGET, token_request(prompt)).as_numpy("output_ids")[0, 0].tolist()
        whole = self.infer(TARGET, token_request(prompt, exclude_input_in_output=row(False, bool)))
        self.assertEqual(whole.as_numpy("output_ids")[0, 0].tolist(), prompt + ids)


class QueueTest(TritonTest):
    """A full queue refuses in the words that clients look for."""

    repository = {"draft": False, "batch": 1, "max_queue_size": 2}

    def test_a_flood_is_refused_in_tritons_words(self):
        prompt = self.folder / "tokens.csv"
        prompt.write_text(",".join(map(str, self.tokens(QUESTION))))
        for protocol, url in (("grpc", self.server.grpc_url), ("http", self.server.http_url)):
            output = self.run_client(
                tool("test_max_queue_size"), "--protocol", protocol, "--url", url, "--input-tokens-csv", prompt,
                "--request-output-len", 400, "--num-requests", 40, "--concurrency", 20,
            )  # fmt: skip
            self.assertNotIn("another error", output)


class SharedMemoryTest(TritonTest):
    """Tensors that the client and the server pass in shared memory."""

    repository = {"draft": False, "exclude_input_in_output": True}
    arguments = ("--allow_shared_memory",)

    def region(self, name, size, values=()):
        """A region of the client's, with the values one after the other."""
        key = f"/tandem_{os.getpid()}_{name}"
        handle = shared_memory.create_shared_memory_region(name, key, size)
        self.addCleanup(shared_memory.destroy_shared_memory_region, handle)
        if values:
            shared_memory.set_shared_memory_region(handle, values)
        return handle, key

    def clients(self):
        """Each client with its module, first without regions."""
        for client, protocol in ((self.grpc, tritonclient.grpc), (self.http, tritonclient.http)):
            client.unregister_system_shared_memory()
            yield client, protocol

    def test_regions_are_registered_listed_and_unregistered(self):
        _, key = self.region("a", 64)
        for client, _ in self.clients():
            self.assertIn("system_shared_memory", client.get_server_metadata(**self.as_json(client))["extensions"])
            client.register_system_shared_memory("a", key, 32, offset=16)
            status = client.get_system_shared_memory_status(**self.as_json(client))
            row = status["regions"]["a"] if "regions" in status else status[0]
            self.assertEqual((row["key"], int(row["offset"]), int(row["byte_size"])), (key, 16, 32))
            error = self.refused(client.register_system_shared_memory, "a", key, 32)
            self.assertIn("shared memory region 'a' already in manager", error.message())
            error = self.refused(client.register_system_shared_memory, "b", key, 65)
            self.assertIn("failed to register shared memory region 'b': invalid args", error.message())
            error = self.refused(client.register_cuda_shared_memory, "c", b"", 0, 8)
            self.assertIn("CUDA shared memory is not supported", error.message())
            client.unregister_system_shared_memory("a")
            self.assertIn(client.get_system_shared_memory_status(**self.as_json(client)), ({}, []))

    def test_strings_and_numbers_are_read_and_answers_are_written(self):
        text, tokens = texts(QUESTION), row(60, np.int32)
        size = 4 + len(QUESTION.encode())
        _, key = self.region("in", size + 4, [serialize_byte_tensor(text), tokens])
        for client, protocol in self.clients():
            handle, out_key = self.region(f"out_{protocol.__name__}", 1024)
            client.register_system_shared_memory("in", key, size + 4)
            client.register_system_shared_memory("out", out_key, 1024)
            inputs = [protocol.InferInput("text_input", [1, 1], "BYTES"), protocol.InferInput("max_tokens", [1, 1], "INT32")]
            inputs[0].set_shared_memory("in", size)
            inputs[1].set_shared_memory("in", 4, offset=size)
            output = protocol.InferRequestedOutput("text_output")
            output.set_shared_memory("out", 1000, offset=24)
            answer = self.written(client.infer("ensemble", inputs, outputs=[output]), "text_output", handle, 24)
            self.assertEqual(answer.tolist(), [DEFINITION.encode()])
            # One input in the message, the other one in memory; one output each.
            prompt = self.tokens(QUESTION)
            inputs = tensors(protocol, {"QUERY": text})
            inputs.append(protocol.InferInput("REQUEST_OUTPUT_LEN", [1, 1], "INT32"))
            inputs[1].set_shared_memory("in", 4, offset=size)
            outputs = named(protocol, ["INPUT_ID", "REQUEST_INPUT_LEN"])
            outputs[0].set_shared_memory("out", 1024)
            result = client.infer("preprocessing", inputs, outputs=outputs)
            self.assertEqual(self.written(result, "INPUT_ID", handle).tolist(), [prompt])
            self.assertEqual(result.as_numpy("REQUEST_INPUT_LEN").item(), len(prompt))
            outputs[0].set_shared_memory("out", 4)
            error = self.refused(client.infer, "preprocessing", inputs, outputs=outputs)
            self.assertIn(
                f"shared memory size specified with the request for output 'INPUT_ID' (4 bytes) should be at least "
                f"{4 * len(prompt)} bytes to hold the results", error.message())  # fmt: skip

    def test_an_object_that_the_client_shortens_fails_its_requests_only(self):
        for client, protocol in self.clients():
            _, key = self.region(f"short_{protocol.__name__}", 1 << 16, [row(5, np.int32)])
            client.register_system_shared_memory("short", key, 1 << 16)
            inputs = tensors(protocol, {"QUERY": texts("x")})
            inputs.append(protocol.InferInput("REQUEST_OUTPUT_LEN", [1, 1], "INT32"))
            inputs[1].set_shared_memory("short", 4, offset=0)
            client.infer("preprocessing", inputs)
            os.truncate(f"/dev/shm{key}", 0)
            self.assertIn("has become shorter", self.refused(client.infer, "preprocessing", inputs).message())
            self.assertTrue(client.is_server_ready())

    def as_json(self, client):
        return {"as_json": True} if client is self.grpc else {}

    def written(self, result, name, handle, offset=0):
        output = result.get_output(name)
        datatype, shape = (output[key] if isinstance(output, dict) else getattr(output, key) for key in ("datatype", "shape"))
        return shared_memory.get_contents_as_numpy(handle, triton_to_np_dtype(datatype), list(shape), offset)


class EndTest(unittest.TestCase):
    def test_sigint_lets_a_stream_end(self):
        with tempfile.TemporaryDirectory() as folder:
            server = TritonServer(make_repository(Path(folder) / "repository", decoupled=True, draft=False))
            with tritonclient.grpc.InferenceServerClient(server.grpc_url) as connection:
                stream = Stream(connection)
                stream.send("ensemble", question(QUESTION, 60, stream=row(True, bool)), request_id="1")
                stream.next()
                ended = []
                stopping = threading.Thread(target=lambda: ended.append(server.stop(signal.SIGINT)))
                stopping.start()
                parts = stream.until_final()
                stream.stop()
            stopping.join()
            self.assertEqual(ended, [0])
            self.assertGreater(len(parts), 2)


if __name__ == "__main__":
    unittest.main()
