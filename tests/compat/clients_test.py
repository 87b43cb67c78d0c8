"""The clients under compat/ against a fake server in this process: what they send, and what they print.

tools/test_python runs it, with numpy and tritonclient[grpc,http].
"""

import contextlib
import importlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from fake_triton import FakeTriton
from old_tree import COMPAT

sys.path[:0] = [str(COMPAT / "inflight_batcher_llm/client"), str(COMPAT / "tools/inflight_batcher_llm")]

DATASET = [
    {"input": "abc", "instruction": "", "output": "one two three four"},
    {"input": "What is Ubuntu operation system?", "instruction": "Answer the question shortly.", "output": " "},
]


def call(client, *arguments, function="main", **more):
    """(exit code, output) of a client."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = getattr(importlib.import_module(client), function)([str(a) for a in arguments], **more)
    return code or 0, output.getvalue()


class ClientsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.dataset = self.folder / "input_data.json"
        self.dataset.write_text(json.dumps(DATASET))

    def serve(self, **options):
        server = FakeTriton(**options)
        self.enterContext(server)
        return server

    def tokens_file(self, name, tokens):
        path = self.folder / name
        path.write_text(",".join(map(str, tokens)) + "\n")
        return path


class TextClientTest(ClientsTest):
    def test_prints_the_text_of_a_model_that_is_decoupled_or_not(self):
        for decoupled in ((), ("ensemble",)):
            server = self.serve(decoupled=decoupled)
            code, output = call("end_to_end_grpc_client", "-u", server.grpc_url, "-p", "abc", "-o", 4)
            self.assertEqual(code, 0)
            self.assertIn("Input: abc\nSequence 0, output beam 0: abcdefg\n", output)

    def test_streamed_parts_are_joined_and_exclude_input_is_always_sent(self):
        server = self.serve(decoupled=("tensorrt_llm_bls",))
        _, output = call(
            "end_to_end_grpc_client", "-u", server.grpc_url, "-p", "abc", "-o", 4, "-S", "--model-name",
            "tensorrt_llm_bls",
        )  # fmt: skip
        self.assertIn("output beam 0: defg\n", output)
        sent = server.sent("tensorrt_llm_bls")[0]
        self.assertEqual(
            set(sent), {"text_input", "max_tokens", "stream", "beam_width", "temperature", "exclude_input_in_output"}
        )
        self.assertEqual({tensor.shape for tensor in sent.values()}, {(1, 1)})
        self.assertEqual(sent["max_tokens"].dtype, np.int32)

    def test_a_json_list_is_a_batch(self):
        server = self.serve()
        code, output = call(
            "end_to_end_grpc_client", "-u", server.grpc_url, "-p", '["abc", "xy"]', "-o", 2, "--batch-inputs",
            "--check-outputs", "--expected-outputs", "abcde", "xyz",
        )  # fmt: skip
        self.assertEqual(code, 0, output)
        self.assertEqual(server.sent("ensemble")[0]["temperature"].shape, (2, 1))

    def test_unexpected_texts_fail(self):
        server = self.serve()
        code, _ = call(
            "end_to_end_grpc_client", "-u", server.grpc_url, "-p", "abc", "-o", 1, "--check-outputs",
            "--expected-outputs", "x",
        )  # fmt: skip
        self.assertEqual(code, 1)

    def test_options_become_tensors(self):
        server = self.serve()
        call(
            "end_to_end_grpc_client", "-u", server.grpc_url, "-p", "abc", "-o", 1, "--stop-words", "q", "rs",
            "--embedding-bias-words", "a", "--embedding-bias-weights", "-2.5", "--end-id", 7, "--top-k", 3,
            "--return-log-probs", "--seed", 2**40, "--request-id", "mine",
        )  # fmt: skip
        sent = server.sent("ensemble")[0]
        self.assertEqual(sent["stop_words"].tolist(), [[b"q", b"rs"]])
        self.assertEqual(sent["embedding_bias_weights"].tolist(), [[-2.5]])
        self.assertEqual((sent["end_id"].item(), sent["top_k"].item(), sent["random_seed"].item()), (7, 3, 2**40))
        self.assertTrue(sent["return_log_probs"].item())
        self.assertEqual(server.requests[0][3], "mine")

    def test_the_client_of_0_5_sends_unsigned_integers_and_word_lists(self):
        server = self.serve(decoupled=("ensemble",))
        _, output = call(
            "end_to_end_streaming_client", "-u", server.grpc_url, "-p", "abc", "--output_len", 3, "--streaming",
            "--tokenizer_type", "llama", "--max_input_len", 9,
        )  # fmt: skip
        self.assertEqual(output, "def\n")
        sent = server.sent("ensemble")[0]
        self.assertEqual(sent["max_tokens"].dtype, np.uint32)
        self.assertEqual(sent["bad_words"].tolist(), [[b""]])


class TokenClientTest(ClientsTest):
    def test_streamed_and_whole_answers_are_the_new_tokens(self):
        for more, decoupled in (([], ()), (["-S"], ("tensorrt_llm",)), (["--exclude-input-in-output"], ())):
            server = self.serve(decoupled=decoupled)
            code, output = call(
                "inflight_batcher_llm_client", "-u", server.grpc_url, "--text", "abc", "--output_len", 3,
                "--check-output", "--output-tokens-csv", self.tokens_file("o.csv", b"def"), *more,
            )  # fmt: skip
            self.assertEqual(code, 0, output)
            self.assertIn("output beam 0: [100, 101, 102]\nText: def\n", output)

    def test_csv_tokens_need_no_tokenizer_and_drafts_are_sent(self):
        server = self.serve()
        code, _ = call(
            "inflight_batcher_llm_client", "-u", server.grpc_url, "--input-tokens-csv",
            self.tokens_file("i.csv", b"abc"), "--draft-tokens-csv", self.tokens_file("d.csv", b"de"),
            "--requested-outputs", "output_ids", "sequence_length",
        )  # fmt: skip
        self.assertEqual(code, 0)
        self.assertEqual([name for name, *_ in server.requests], ["tensorrt_llm"])
        sent = server.sent("tensorrt_llm")[0]
        self.assertEqual(sent["draft_input_ids"].tolist(), [list(b"de")])
        self.assertEqual((sent["end_id"].item(), sent["pad_id"].item(), sent["runtime_top_k"].item()), (-1, 50256, 1))

    def test_other_outputs_than_asked_are_an_error(self):
        server = self.serve()
        with self.assertRaisesRegex(Exception, "asked for"):
            call(
                "inflight_batcher_llm_client", "-u", server.grpc_url, "--text", "abc", "--requested-outputs",
                "output_ids", "sequence_length", "cum_log_probs",
            )  # fmt: skip

    def test_a_wrong_token_fails_below_the_threshold_only(self):
        for threshold, code in ((1.0, 1), (0.6, 0)):
            server = self.serve()
            found, output = call(
                "inflight_batcher_llm_client", "-u", server.grpc_url, "--text", "abc", "--request-output-len", 3, "-c",
                "--output-tokens-csv", self.tokens_file("o.csv", b"dxf"), "--correctness-threshold", threshold,
            )  # fmt: skip
            self.assertEqual(found, code, output)

    def test_a_stop_request_has_the_id_of_the_request(self):
        server = self.serve()
        code, output = call(
            "inflight_batcher_llm_client", "-u", server.grpc_url, "--text", "abc", "--request-output-len", 1000, "-S",
            "--stop-after-ms", 1,
        )  # fmt: skip
        self.assertEqual(code, 0, output)
        (_, _, _, first), (_, stop, _, second) = server.requests[1:3]
        self.assertEqual((first, second), ("1", "1"))
        self.assertTrue(stop["stop"].item())

    def test_a_cancelled_call_ends_the_client(self):
        server = self.serve()
        code, output = call(
            "inflight_batcher_llm_client", "-u", server.grpc_url, "--text", "abc", "--request-output-len", 1000, "-S",
            "--stop-after-ms", 1, "--stop-via-request-cancel",
        )  # fmt: skip
        self.assertEqual(code, 0, output)
        self.assertIn("Got cancellation response", output)


class SpeculationTest(ClientsTest):
    def run_client(self, server, *more):
        return call(
            "e2e_grpc_speculative_decoding_client",
            f"--url-target={server.grpc_url}",
            "--draft-tensorrt-llm-model-name=tensorrt_llm_draft",
            "--target-tensorrt-llm-model-name=tensorrt_llm",
            *more,
        )

    def test_the_line_of_the_guide_prints_the_targets_text(self):
        server = self.serve()
        _, output = self.run_client(
            server, "--output-len=100", "--num-draft-tokens=4", "--end-id=2", "--pad-id=2", "--prompt", "so: abc"
        )
        self.assertEqual(output, "Final text:\nso: abcdefghijklmnopqrstuvwxyz\n")
        for tensors in server.sent("tensorrt_llm"):
            drafted = tensors.get("draft_input_ids", np.empty([1, 0])).shape[1]
            self.assertEqual(tensors["request_output_len"].item(), drafted + 1)
            self.assertEqual(tensors["bad_words_list"].shape, (1, 2, 0))
            self.assertEqual(tensors["end_id"].item(), 2)
            self.assertFalse(tensors["exclude_input_in_output"].item())
        self.assertLess(len(server.sent("tensorrt_llm")), 23)

    def test_the_length_is_exact_for_every_count_of_draft_tokens(self):
        for count in (0, 1, 3, 9):
            server = self.serve()
            _, output = self.run_client(server, "-o", 7, "--num-draft-tokens", count, "-p", "abc")
            self.assertEqual(output, "Final text:\nabcdefghij\n")

    def test_stop_words_end_it(self):
        words = ["--stop-words", "xy", "ef"]
        _, output = self.run_client(self.serve(), "-o", 9, "-p", "abc", *words, "--num-draft-tokens", 1)
        self.assertEqual(output, "Final text:\nabcdef\n")

    def test_both_lines_of_the_comparison_succeed(self):
        for more in (["--execute-bls-speculative-decoding"], []):
            server = self.serve()
            code, output = call(
                "speculative_decoding_test", "--max-input-len", 2500, "--dataset", self.dataset,
                f"--url-control={server.grpc_url}", f"--url-target={server.grpc_url}", f"--url-draft={server.grpc_url}",
                "--draft-tensorrt-llm-model-name=tensorrt_llm_draft", "--target-tensorrt-llm-model-name=tensorrt_llm",
                "--bls-speculative-tensorrt-llm-model-name=tensorrt_llm_bls", *more, "--num-draft-tokens=4",
                "--use-draft-logits",
            )  # fmt: skip
            self.assertEqual(code, 0, output)
            self.assertIn("failed/total: 0/2", output)
            control = server.sent("ensemble")[1]
            self.assertEqual(control["max_tokens"].item(), 2)
            self.assertEqual(control["embedding_bias_words"].shape, (1, 0))
            self.assertEqual(control["embedding_bias_weights"].shape, (1, 0))
            self.assertFalse(control["exclude_input_in_output"].item())
            if more:
                speculative = server.sent("tensorrt_llm_bls")[0]
                self.assertEqual(speculative["num_draft_tokens"].item(), 4)
                self.assertTrue(speculative["use_draft_logits"].item())
            else:
                with_draft = next(t for t in server.sent("tensorrt_llm") if "draft_input_ids" in t)
                count = with_draft["draft_input_ids"].shape[1]
                self.assertEqual(with_draft["draft_logits"].shape[:2], (1, count))

    def test_a_longer_prompt_than_allowed_is_skipped_and_nothing_left_fails(self):
        server = self.serve()
        code, output = call(
            "speculative_decoding_test", "--max-input-len", 1, "--dataset", self.dataset, "--url-control",
            server.grpc_url, "--url-target", server.grpc_url, "--url-draft", server.grpc_url,
        )  # fmt: skip
        self.assertEqual(code, 1)
        self.assertIn("failed/total: 0/0", output)


class ToolsTest(ClientsTest):
    def test_the_end_to_end_comparison_over_both_protocols(self):
        server = self.serve()
        for protocol, url in (("grpc", server.grpc_url), ("http", server.http_url)):
            code, output = call(
                "end_to_end_test", "-i", protocol, "-u", url, "-c", 4, "--max-input-len", 100, "--dataset",
                self.dataset, "--test-bls", "--return-log-probs",
            )  # fmt: skip
            self.assertEqual(code, 0, output)
            self.assertIn("[INFO] Start testing on 2 prompts.\n[INFO] Functionality test succeeded.\n", output)
            self.assertRegex(output, r"\[INFO\] Total Latency: [\d.]+ ms")

    def test_the_benchmark_over_each_kind_of_workload_and_protocol(self):
        server = self.serve()
        random = ["token-norm-dist", "--input-mean", 12, "--input-stdev", 3, "--output-mean", 5, "--output-stdev", 1]
        for protocol, url in (("grpc", server.grpc_url), ("http", server.http_url)):
            code, output = call(
                "benchmark_core_model", "-i", protocol, "-u", url, "--max-input-len", 10, "--num-requests", 20,
                "--op-stats-csv", self.folder / "stats.csv", *random,
            )  # fmt: skip
            self.assertEqual(code, 0)
            self.assertRegex(output, r"(?m)^requests +20$")
            self.assertEqual(len((self.folder / "stats.csv").read_text().splitlines()), 21)
        sent = server.sent("tensorrt_llm")
        self.assertLessEqual(max(tensors["input_ids"].shape[1] for tensors in sent), 10)
        self.assertEqual({(t["pad_id"].item(), t["end_id"].item()) for t in sent}, {(0, 1)})
        self.assertEqual([t["request_output_len"].item() for t in sent[:10]], [100] * 10)
        for workload in (["dataset", "--dataset", self.dataset], ["token-from-histogram"]):
            code, _ = call(
                "benchmark_core_model", "-u", server.grpc_url, "--max-input-len", 100, "--num-requests", 3, *workload
            )
            self.assertEqual(code, 0)

    def test_the_benchmark_of_a_decoupled_model_at_a_rate(self):
        server = self.serve(decoupled=("tensorrt_llm",))
        code, output = call(
            "benchmark_core_model", "-u", server.grpc_url, "--decoupled", "--max-input-len", 100, "--num-requests", 4,
            "--request-rate", 1000, "token-norm-dist", "--input-mean", 4, "--input-stdev", 0, "--output-mean", 2,
            "--output-stdev", 0,
        )  # fmt: skip
        self.assertEqual(code, 0)
        self.assertIn("throughput (tokens/s)", output)

    def test_the_benchmark_of_0_5_sends_unsigned_integers(self):
        server = self.serve()
        code, _ = call(
            "identity_test", "-u", server.grpc_url, "--max_input_len", 100, "--tokenizer_dir", "x", "dataset",
            "--dataset", self.dataset, integer=np.uint32,
        )  # fmt: skip
        self.assertEqual(code, 0)
        self.assertEqual({t["input_ids"].dtype for t in server.sent("tensorrt_llm")}, {np.dtype(np.uint32)})

    def test_a_slower_run_than_expected_fails(self):
        server = self.serve()
        expected = self.folder / "perf.json"
        expected.write_text('{"here": 0.001}')
        code, output = call(
            "benchmark_core_model", "-u", server.grpc_url, "--max-input-len", 9, "--num-requests", 1,
            "--check-perf-json", expected, "--check-perf-key", "here", "token-from-histogram",
        )  # fmt: skip
        self.assertEqual(code, 1)
        self.assertIn("the total latency is", output)

    def test_a_flood_passes_when_the_queue_refuses_in_tritons_words(self):
        for protocol in ("grpc", "http"):
            for queue, expected in ((2, 0), (None, 1)):
                server = self.serve(queue=queue)
                url = server.grpc_url if protocol == "grpc" else server.http_url
                code, output = call(
                    "test_max_queue_size", "--protocol", protocol, "--url", url, "--num-requests", 8, "--concurrency", 4
                )
                self.assertEqual(code, expected, output)


if __name__ == "__main__":
    unittest.main()
