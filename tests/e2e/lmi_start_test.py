"""The server as users of SageMaker's LMI containers start it: folders with serving.properties, variables of the environment,
and what it says about both. The routes of those containers have a test of their own."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness
from harness import QUESTION, REPOSITORY

PAIR = REPOSITORY / "models/dictionary"
TARGET = PAIR / "target"
TANDEM = str(Path(harness.TANDEM).resolve())
# No variable or folder of this machine counts.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not re.match(r"(OPTION|SERVING|SAGEMAKER|HF|MAX|MODEL|PREDICT|TENSOR|PIPELINE|SM)_", name)
}


class Started(harness.Server):
    """`tandem serve` with variables; on a loopback address, unless the arguments say otherwise."""

    def __init__(self, *arguments, **variables):
        assignments = [f"{name}={value}" for name, value in variables.items()]
        self.command = ("env", "-i", *[f"{k}={v}" for k, v in CLEAN.items()], *assignments, TANDEM, "serve")
        super().__init__("--host", "127.0.0.1", *arguments)


class LmiStartTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)

    def write(self, path, text=""):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path.parent

    def link(self, path, model=TARGET):
        """A folder of links to a model's files."""
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        for file in model.iterdir():
            os.symlink(file, folder / file.name)
        return folder

    @contextlib.contextmanager
    def started(self, *arguments, **variables):
        server = Started(*arguments, **variables)
        try:
            yield server
        finally:
            code = server.stop()
            self.assertEqual(code, 0, "".join(server.lines))

    def run_to_its_end(self, *arguments, **variables):
        return subprocess.run(
            [TANDEM, "serve", *map(str, arguments)],
            env={**CLEAN, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def refused(self, *arguments, code=2, **variables):
        done = self.run_to_its_end(*arguments, **variables)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def names(self, server):
        status, _, text = server.request("GET", "/v1/models")
        self.assertEqual(status, 200)
        return re.findall(r'"id":"([^"]*)"', text)

    def test_a_folder_with_a_models_own_files(self):
        folder = self.link("llama")
        self.write("llama/serving.properties", "engine = MPI\noption.max_output_len: 40\noption.enable_lora=false\n")
        with self.started(folder) as server:
            self.assertEqual(self.names(server)[0], "llama")
            self.assertIn("bicycle", server.generate(QUESTION)[1]["text_output"])

    def test_two_models_of_a_store(self):
        self.write("store/first/serving.properties", f"option.model_id={TARGET}\n")
        self.write("store/second/inner/serving.properties", f"option.model_id={PAIR / 'draft'}\n")
        with self.started(SERVING_MODEL_STORE=self.root / "store") as server:
            names = self.names(server)
            self.assertEqual(names[0], "first")
            self.assertIn("second", names)
            for name in ("first", "second"):
                status, answer = server.post(
                    f"/v2/models/{name}/generate", {"text_input": QUESTION, "max_tokens": 60}
                )
                self.assertEqual(status, 200, answer)
                self.assertTrue(answer["text_output"])

    def test_the_environment_alone(self):
        store = self.root / "empty"
        store.mkdir()
        with self.started(HF_MODEL_ID=TARGET, SERVING_MODEL_STORE=store, OPTION_MAX_INPUT_LEN=20) as server:
            self.assertIn("bicycle", server.generate(QUESTION)[1]["text_output"])
            status, answer = server.generate("word " * 60)
            self.assertEqual(status, 400, answer)

    def test_a_draft_model(self):
        folder = self.write(
            "m/serving.properties", f"option.model_id={TARGET}\noption.draft_model_id={PAIR / 'draft'}\n"
        )
        with self.started(folder) as server:
            self.assertIn("bicycle", server.generate(QUESTION)[1]["text_output"])
            self.assertGreater(server.metric('tandem_drafts_accepted_total'), 0)

    def test_a_repository_of_engines_with_weights_beside_them(self):
        self.link("repo/tensorrt_llm")
        self.write("repo/tensorrt_llm/1/trt_llm_model_float16_tp2_rank0.engine", "engine")
        self.write("repo/tensorrt_llm/1/config.json", '{"builder_config": {}}')
        self.write("repo/tensorrt_llm/config.pbtxt", "")
        folder = self.write("m/serving.properties", f"option.model_id={self.root / 'repo'}\n")
        with self.started(folder) as server:
            self.assertIn("bicycle", server.generate(QUESTION)[1]["text_output"])
            self.assertIn("an engine of TensorRT is not run", "".join(server.lines))

    def test_engines_without_weights_are_refused_with_what_they_need(self):
        self.write("repo/tensorrt_llm/1/rank0.engine", "engine")
        self.write("repo/tensorrt_llm/1/config.json", '{"builder_config": {}}')
        shutil.copy(TARGET / "config.json", self.root / "repo/tensorrt_llm/config.json")
        folder = self.write("m/serving.properties", f"option.model_id={self.root / 'repo'}\n")
        said = self.refused(folder, "--port", 0, code=3)
        self.assertIn("rank0.engine is an engine of TensorRT", said)
        self.assertIn(".safetensors", said)

    def test_errors_name_file_line_and_key(self):
        folder = self.write("m/serving.properties", f"option.model_id={TARGET}\n\noption.tokens_per_block=48\n")
        said = self.refused(folder, "--port", 0)
        self.assertIn(f"{folder}/serving.properties: line 3: option.tokens_per_block: '48'", said)
        self.assertIn("8, 16, 32, 64, 128", said)
        self.write("m/serving.properties", "option.enable_lora=true\n")
        self.assertIn("line 1: option.enable_lora: 'true' asks for adapters", self.refused(folder))
        self.write("m/serving.properties", "a=\\u12\n")
        self.assertIn("serving.properties: line 1: \\u needs four", self.refused(folder))

    def test_what_has_no_effect_is_told(self):
        folder = self.write(
            "m/serving.properties",
            f"option.model_id={TARGET}\noption.context_parallel_size=4\noption.max_inputlen=3\n",
        )
        with self.started(folder) as server:
            said = "".join(server.lines)
        self.assertIn("option.context_parallel_size 4: no effect: a model is split by", said)
        self.assertIn("option.max_inputlen (did you mean option.max_input_len?)", said)

    def test_a_degree_splits_the_model_and_max_is_one_rank_on_a_cpu(self):
        for degree, ranks in (("2", 2), ("max", 1)):
            folder = self.write(
                "m/serving.properties", f"option.model_id={TARGET}\noption.tensor_parallel_degree={degree}\n"
            )
            with self.subTest(degree), self.started(folder, "--device", "cpu") as server:
                self.assertIn("bicycle", server.generate(QUESTION)[1]["text_output"])
                self.assertEqual(server.metric("tandem_ranks"), ranks)

    def test_a_pipeline_degree_makes_stages(self):
        folder = self.write(
            "m/serving.properties", f"option.model_id={TARGET}\noption.pipeline_parallel_degree=2\n"
        )
        with self.started(folder, "--device", "cpu") as server:
            self.assertIn("bicycle", server.generate(QUESTION)[1]["text_output"])
            self.assertEqual(server.metric("tandem_ranks"), 2)
            self.assertIn("(stage 2 of 2)", "".join(server.lines))

    def test_the_configuration_is_shown(self):
        folder = self.write("m/serving.properties", "option.model_id=org/model\noption.max_input_len=256 # 1024\n")
        done = self.run_to_its_end(folder, "--print_config", OPTION_DTYPE="fp16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("option.max_input_len=256\n", done.stdout)
        self.assertIn("# OPTION_DTYPE: --dtype\noption.dtype=fp16\n", done.stdout)
        self.assertIn("# => --max_seq_len 768\n", done.stdout)

    def test_the_values_shown_are_those_that_count(self):
        folder = self.write("m/serving.properties", "option.model_id=org/model\noption.max_input_len=256\noption.quantize=awq\n")
        done = self.run_to_its_end(folder, "--print_config", "--max_seq_len", 300, TANDEM_MAX_BATCH_SIZE="3")
        self.assertIn("# => --max_seq_len 300 (of the command line or a TANDEM_ variable)\n", done.stdout)
        self.assertIn("# => --max_batch_size 3 (of the command line or a TANDEM_ variable)\n", done.stdout)
        self.assertIn("# => --quantize awq\n", done.stdout)
        self.write("m/serving.properties", "\noption.tokens_per_block=33\n")
        self.assertIn("serving.properties: line 2: option.tokens_per_block: '33'", self.refused(folder, "--print_config"))

    def test_the_archive_that_sagemaker_is_given_is_served(self):
        self.link("mymodel")
        self.write("mymodel/serving.properties", "option.max_rolling_batch_size=16\noption.output_formatter=sse\n")
        archive = self.root / "mymodel.tar.gz"
        subprocess.run(["tar", "czhf", archive, "-C", self.root, "mymodel"], check=True)
        home = str(self.root / "home")
        shown = self.run_to_its_end(archive, "--print_config", HOME=home).stdout
        self.assertIn("# => --max_batch_size 16\n", shown)
        for more in ((), ("--as_lmi",)):
            with self.started(archive, *more, HOME=home) as server:
                self.assertEqual(self.names(server)[0], "mymodel")
                server.await_line("/invocations")
                status, headers, text = server.request("POST", "/invocations", {"inputs": QUESTION, "stream": True})
                self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"), text)

    def test_versions_of_other_families_are_ignored_at_their_defaults(self):
        folder = self.link("m")
        self.write("m/serving.properties", "option.baichuan_model_version=v1_13b\noption.gpt_model_version=gpt2\n")
        with self.started(folder) as server:
            self.assertIn("option.gpt_model_version: no effect", "".join(server.lines))
        self.write("m/serving.properties", "\noption.gpt_model_version=santacoder\n")
        self.assertIn("serving.properties: line 2: option.gpt_model_version", self.refused(folder))

    def test_the_usual_number_of_new_tokens_is_bounded_by_what_fits(self):
        folder = self.link("m")
        self.write("m/serving.properties", "option.max_input_len=20\noption.max_output_len=50\n")
        with self.started(folder) as server:
            status, _, text = server.request("POST", "/invocations", {"inputs": QUESTION})
            self.assertEqual(status, 200, text)

    def test_an_endpoint_of_many_models_begins_empty(self):
        self.link("one")
        self.write("one/serving.properties", "option.output_formatter=sse\noption.max_rolling_batch_size=4\njob_queue_size=3\n")
        with self.started(SAGEMAKER_MULTI_MODEL="true", SERVING_MODEL_STORE=str(self.root / "none")) as server:
            self.assertIn("POST /models?url=FOLDER", "".join(server.lines))
            status, _, text = server.request("POST", "/models", {"model_name": "one", "url": str(self.root / "one")})
            self.assertEqual(status, 200, text)
            self.assertIn('"queueSize": 3', server.request("GET", "/models/one")[2])
            body = {"inputs": QUESTION, "stream": True}
            status, headers, text = server.request("POST", "/models/one/invoke", body)
            self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"), text)

    def test_variables_without_effect_are_named(self):
        with self.started(TARGET, OPTION_MAX_INPUT_LEN="3") as server:
            self.assertIn("OPTION_MAX_INPUT_LEN and other variables of an LMI container: no effect", "".join(server.lines))

    def test_a_port_in_use_is_told_before_models_are_loaded(self):
        with self.started(TARGET) as server:
            said = self.refused("/absent/model.tar.gz", "--host", "127.0.0.1", "--port", server.port, code=6)
        self.assertIn(f"Port {server.port} is in use", said)

    def test_a_container_without_a_model_says_so(self):
        said = self.refused("--as_lmi", code=3, SERVING_MODEL_STORE=str(self.root / "none"))
        self.assertIn("there is no model", said)
        self.assertIn("HF_MODEL_ID", said)

    def test_a_folder_is_served_on_the_loopback_address(self):
        folder = self.write("m/serving.properties", f"option.model_id={TARGET}\n")
        process = subprocess.Popen(
            [TANDEM, "serve", folder],
            env={**CLEAN, "SERVING_PORT": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Started HTTPService at" in line:
                break
        process.send_signal(signal.SIGTERM)
        self.assertRegex(lines[-1], r"at 127\.0\.0\.1:\d+")
        process.stdout.read()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 0)

    def test_the_page_has_the_table_of_keys(self):
        page = (REPOSITORY / "docs/coming-from/lmi.md").read_text()
        table = harness.tandem("completion", "lmi").stdout
        self.assertIn(table, page, "run: tandem completion lmi, and put it under 'Every key' of docs/coming-from/lmi.md")


if __name__ == "__main__":
    unittest.main()
