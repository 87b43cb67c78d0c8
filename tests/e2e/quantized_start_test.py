"""`--quantize`: a model that is quantized when it is first served, and kept; `tandem partition`, which does it before."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from harness import QUESTION, REPOSITORY, TANDEM, Server, answer_key, tandem

KEY = answer_key()
TARGET = REPOSITORY / "models/dictionary/target"
FEW = ("--calib_size", "8", "--no_draft", "--device", "cpu")


class CacheTest(unittest.TestCase):
    """Tests whose cache is a folder of their own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        self.cache = self.work / "cache"
        self.enterContext(mock.patch.dict(os.environ, {"DJL_CACHE_DIR": str(self.cache)}))

    def kept(self):
        return sorted(entry.name for entry in (self.cache / "quantized").iterdir())

    def served(self, *arguments):
        """The lines of a server that answers correctly."""
        server = Server(*arguments)
        try:
            status, answer = server.generate(QUESTION)
            self.assertEqual(status, 200, answer)
            self.assertIn(KEY["tandem"], answer["text_output"])
        finally:
            self.assertEqual(server.stop(), 0, "".join(server.lines))
        return "".join(server.lines)


class QuantizedStartTest(CacheTest):
    def test_the_first_start_quantizes_and_later_ones_open_the_result(self):
        for scheme, form in (
            (("awq",), "int4 in groups of 128"),
            (("smoothquant", "--smoothquant_alpha", "0.7", "--smoothquant_per_token"), "int8"),
        ):
            first = self.served(TARGET, "--quantize", *scheme, *FEW)
            self.assertIn(f"to {form}", first)
            self.assertIn("with 8 samples of the embedded dictionary", first)
            kept = self.kept()
            again = self.served(TARGET, "--quantize", *scheme, *FEW)
            self.assertNotIn("quantizing", again)
            self.assertNotIn("calibrating", again)
            self.assertEqual(self.kept(), kept)
        self.assertEqual(len(self.kept()), 2)

    def test_serving_properties_ask_for_it_too(self):
        folder = self.work / "model"
        folder.mkdir()
        (folder / "serving.properties").write_text(
            f"option.model_id={TARGET}\noption.quantize=smoothquant\noption.calib_size=8\n"
            "option.smoothquant_per_token=true\noption.multi_query_mode=true\n"
        )
        for start in range(2):
            said = self.served(folder, "--host", "127.0.0.1", "--device", "cpu")
            self.assertEqual("once: about" in said, start == 0, said)
            self.assertIn("option.multi_query_mode true: no effect: `config.json` says", said)
        self.assertEqual(len(self.kept()), 1)
        self.assertIn("smoothquant", self.kept()[0])

    def test_servers_that_start_together_quantize_once(self):
        command = [TANDEM, "run", str(TARGET), "--quantize", "awq", *FEW, "--input_text", QUESTION]
        together = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
        ]
        ran = [process.communicate(timeout=600) for process in together]
        self.assertEqual([process.returncode for process in together], [0, 0], ran)
        for out, _ in ran:
            self.assertIn(KEY["tandem"], out)
        said = "".join(err for _, err in ran)
        self.assertEqual(said.count("once: about"), 1, said)
        self.assertEqual(said.count("another process is quantizing"), 1, said)
        self.assertEqual(len(self.kept()), 1)

    def test_what_cannot_be_done_is_refused_by_name(self):
        for arguments, words in (
            (("--quantize", "awq", "--weights", "int8"), "--quantize, --weights: both say"),
            (("--quantize", "gptq"), "--quantize"),
            (("--quantize", "awq", "--awq_block_size", "32"), "--awq_block_size"),
            (("--quantize", "smoothquant", "--smoothquant_alpha", "2"), "--smoothquant_alpha"),
        ):
            done = tandem("run", TARGET, *arguments, "--input_text", "x", check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        planned = tandem("plan", TARGET, "--quantize", "awq", check=False)
        self.assertNotEqual(planned.returncode, 0)
        self.assertIn("has not been quantized so yet", planned.stderr)
        self.assertFalse(self.cache.exists())

    def test_options_without_effect_are_named(self):
        arguments = ("--smoothquant_alpha", "0.5", "--multi_query_mode", "--use_fp8_context_fmha")
        done = tandem("run", TARGET, *arguments, "--no_draft", "--max_output_len", "2", "--input_text", "x")
        self.assertIn("--smoothquant_alpha has no effect without --quantize smoothquant", done.stderr)
        self.assertIn("--multi_query_mode has no effect: config.json says", done.stderr)
        self.assertIn("--use_fp8_context_fmha has no effect: attention computes in 16 bits", done.stderr)


class PartitionTest(CacheTest):
    """A folder with serving.properties -> artifact -> answer, with the old name and without."""

    def setUp(self):
        super().setUp()
        self.properties = self.work / "properties"
        self.properties.mkdir()
        self.artifact = self.work / "artifact"

    def write(self, *lines):
        (self.properties / "serving.properties").write_text("".join(line + "\n" for line in lines))

    def partition(self, *arguments, script=None):
        command = [TANDEM, "partition"] if script is None else [sys.executable, str(REPOSITORY / "compat" / script)]
        return subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "TANDEM": str(Path(TANDEM).resolve())},
        )

    def test_the_old_command_line_makes_what_serve_opens(self):
        self.write(
            f"option.model_id={TARGET}",
            "option.quantize = awq",
            "option.awq_calib_size=8",
            "option.max_rolling_batch_size=16",
            "option.max_input_len=128",
            "option.max_output_len=128",
            "job_queue_size=77",
        )
        done = self.partition(
            "--properties_dir",
            self.properties,
            "--trt_llm_model_repo",
            self.artifact,
            "--tensor_parallel_degree",
            "2",
            script="trt_llm_partition.py",
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        model = self.artifact / "tensorrt_llm"
        # By these two, one level below the root, LMI recognizes an artifact.
        self.assertTrue((model / "config.pbtxt").is_file())
        self.assertTrue((model / "tokenizer_config.json").is_file())
        self.assertEqual(
            sorted(path.name for path in (model / "1").glob("rank*")), ["rank0.engine", "rank1.engine"]
        )
        self.assertEqual(
            json.loads((model / "config.json").read_text()), json.loads((TARGET / "config.json").read_text())
        )
        engine = json.loads((model / "1/config.json").read_text())
        self.assertEqual(engine["build_config"]["max_batch_size"], 16)
        self.assertEqual(engine["build_config"]["max_seq_len"], 256)
        self.assertFalse((model / "checkpoint").exists())
        properties = (self.artifact / "serving.properties").read_text()
        self.assertNotIn("option.model_id", properties)
        self.assertIn("job_queue_size=77\n", properties)
        # With serving.properties it starts as LMI's container does.
        said = self.served(self.artifact, "--host", "127.0.0.1", "--no_draft", "--device", "cpu")
        self.assertIn("--quantize awq: has no effect", said)
        self.served(model, "--no_draft", "--device", "cpu")
        inspected = tandem("inspect", model / "1")
        self.assertIn("int4 in groups of 128", inspected.stdout)

    def test_a_repository_of_triton_it_is_too(self):
        done = self.partition("--model_path", TARGET, "--trt_llm_model_repo", self.artifact)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        server = Server("--model_repo", self.artifact, "--grpc_port", "0", "--metrics_port", "0", "--device", "cpu")
        try:
            status, _, text = server.request("GET", "/v2/models/tensorrt_llm/ready")
            self.assertEqual(status, 200, text)
        finally:
            self.assertEqual(server.stop(), 0, "".join(server.lines))

    def test_an_artifact_without_properties_does_not_keep_those_of_an_earlier_one(self):
        kept = self.artifact / "serving.properties"
        self.artifact.mkdir()
        kept.write_text("job_queue_size=3\n")
        self.write(f"option.model_id={TARGET}", "job_queue_size=5")
        by_model = ("--model_path", TARGET, "--trt_llm_model_repo", self.artifact)
        by_properties = ("--properties_dir", self.properties, "--trt_llm_model_repo", self.artifact)
        # A file that was put into the folder before there was an artifact is not an earlier one's.
        for arguments, expected in ((by_model, "job_queue_size=3\n"), (by_properties, "job_queue_size=5\n"), (by_model, None)):
            done = self.partition(*arguments)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(kept.read_text() if kept.exists() else None, expected)

    def test_a_job_of_neo_is_told_of_its_error(self):
        error = self.work / "error.json"
        shutil.copytree(TARGET, self.properties, dirs_exist_ok=True)
        variables = {
            "SM_NEO_EXECUTION_CONTEXT": "1",
            "SM_NEO_INPUT_MODEL_DIR": str(self.properties),
            "SM_NEO_COMPILED_MODEL_DIR": str(self.artifact),
            "SM_NEO_COMPILATION_ERROR_FILE": str(error),
            "SM_NEO_HF_CACHE_DIR": str(self.work),
        }
        flags = json.dumps({"compiler_flags": {"trtllm_build_flags": {}}})
        with mock.patch.dict(os.environ, {**variables, "COMPILER_OPTIONS": flags}):
            refused = self.partition()
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("COMPILER_OPTIONS: compiler_flags", json.loads(error.read_text())["error"])
        error.unlink()
        with mock.patch.dict(os.environ, {**variables, "COMPILER_OPTIONS": "{}"}):
            done = self.partition()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("SM_NEO_HF_CACHE_DIR: no effect", done.stderr)
        self.assertFalse(error.exists())
        self.served(self.artifact, "--no_draft", "--device", "cpu")

    def test_errors_name_the_option_or_the_key(self):
        self.write("option.model_id=/nowhere")
        for arguments, words in (
            (("--properties_dir", self.properties), "--trt_llm_model_repo: is required"),
            (("--trt_llm_model_repo", self.artifact), "--properties_dir: is required"),
            (
                ("--properties_dir", self.properties, "--trt_llm_model_repo", self.properties),
                "--trt_llm_model_repo: is --properties_dir",
            ),
            (("--properties_dir", self.properties, "--trt_llm_model_repo", self.artifact), "option.model_id: /nowhere"),
            (
                ("--model_path", TARGET, "--trt_llm_model_repo", self.artifact, "--tensor_parallel_degree", "none"),
                "tensor_parallel_degree",
            ),
        ):
            done = self.partition(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)
            self.assertFalse((self.artifact / "tensorrt_llm/config.pbtxt").exists())
        (self.artifact / "tensorrt_llm").mkdir(parents=True)
        (self.artifact / "tensorrt_llm/notes.txt").write_text("mine")
        done = self.partition("--model_path", TARGET, "--trt_llm_model_repo", self.artifact)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("holds something else (notes.txt)", done.stderr)


if __name__ == "__main__":
    unittest.main()
