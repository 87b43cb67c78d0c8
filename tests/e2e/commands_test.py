"""The verbs from the users' view: convert, build, run, eval, and their errors."""

import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from harness import QUESTION, REPOSITORY, TANDEM, Server, answer_key, tandem

KEY = answer_key()
PAIR = REPOSITORY / "models/dictionary"


class WorkflowTest(unittest.TestCase):
    """HF folder -> checkpoint -> engine -> answer, with old command lines and the old names."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = Path(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def old_name(self, script, *arguments):
        done = subprocess.run(
            [sys.executable, REPOSITORY / "compat" / script, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "TANDEM": str(Path(TANDEM).resolve())},
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_the_draft_target_workflow_of_the_seeds(self):
        for name in ("target", "draft"):
            self.old_name(
                "convert_checkpoint.py",
                f"--model_dir={PAIR / name}",
                f"--output_dir={self.work / ('ckpt-' + name)}",
                "--dtype=bfloat16",
            )
        self.old_name(
            "trtllm-build",
            f"--checkpoint_dir={self.work / 'ckpt-draft'}",
            f"--output_dir={self.work / 'engine-draft'}",
            "--gemm_plugin=float16",
            "--use_paged_context_fmha=enable",
            "--max_batch_size=4",
            "--max_input_len=320",
            "--max_seq_len=480",
        )
        self.old_name(
            "trtllm-build",
            f"--checkpoint_dir={self.work / 'ckpt-target'}",
            f"--output_dir={self.work / 'engine-target'}",
            "--gemm_plugin=float16",
            "--use_paged_context_fmha=enable",
            "--speculative_decoding_mode=draft_tokens_external",
            "--max_batch_size=4",
            "--max_draft_len=10",
            "--max_input_len=320",
            "--max_seq_len=480",
        )
        output = self.old_name(
            "examples/run.py",
            f"--tokenizer_dir={PAIR / 'target'}",
            f"--draft_engine_dir={self.work / 'engine-draft'}",
            f"--engine_dir={self.work / 'engine-target'}",
            "--draft_target_model_config=[4,[0],[1],False]",
            "--max_output_len=256",
            "--kv_cache_enable_block_reuse",
            "--kv_cache_free_gpu_memory_fraction=0.5",
            f"--input_text={QUESTION}",
        )
        self.assertIn(f'Input [Text 0]: "{QUESTION}"', output)
        self.assertIn(f'Output [Text 0 Beam 0]: "{KEY["tandem"]}"', output)
        self.assertIn("drafted tokens held", output)

    def test_sharded_checkpoints_build_to_the_same_answers(self):
        for tp_size in (2, 4):
            checkpoint = self.work / f"ckpt-tp{tp_size}"
            engine = self.work / f"engine-tp{tp_size}"
            tandem("convert", "--model_dir", PAIR / "target", "--output_dir", checkpoint, "--tp_size", tp_size)
            self.assertEqual(len(list(checkpoint.glob("rank*.safetensors"))), tp_size)
            tandem("build", "--checkpoint_dir", checkpoint, "--output_dir", engine)
            for model in (checkpoint, engine):
                done = tandem("run", model, "--no_draft", "--input_text", QUESTION)
                self.assertIn(KEY["tandem"], done.stdout)

    def test_every_way_of_rounding_while_converting_answers(self):
        ways = {
            "W8A16": ["--use_weight_only"],
            "W4A16": ["--use_weight_only", "--weight_only_precision", "int4"],
            "W4A16_AWQ": [*"--use_weight_only --weight_only_precision int4 --per_group --group_size 64".split()],
            "W8A8_SQ_PER_CHANNEL": ["--smoothquant", "0.5", "--load_model_on_cpu"],
            "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": ["-sq", "0.5", "--per_token", "--per_channel"],
            "FP8": ["--use_fp8", "--fp8_kv_cache", "--tp_size", "2"],
            "FP8_PER_CHANNEL_PER_TOKEN": ["--use_fp8_rowwise"],
        }
        for algo, flags in ways.items():
            with self.subTest(algo):
                checkpoint = self.work / f"ckpt-{algo}"
                self.old_name(
                    *("convert_checkpoint.py", "--model_dir", PAIR / "target", "--output_dir", checkpoint, *flags),
                    *("--calib_size", 64),
                )
                quantization = json.loads((checkpoint / "config.json").read_text())["quantization"]
                self.assertEqual(quantization["quant_algo"], algo)
                self.assertEqual(quantization["kv_cache_quant_algo"], "FP8" if algo == "FP8" else None)
                done = tandem("run", checkpoint, "--no_draft", "--input_text", QUESTION)
                self.assertIn(KEY["tandem"], done.stdout)

    def test_weights_that_another_tool_quantized_convert_from_a_folder_of_their_own(self):
        exported, checkpoint, engine = (self.work / name for name in ("exported", "ckpt-read", "engine-read"))
        tandem(
            *("quantize", PAIR / "target", "--qformat", "int4_awq", "--awq_block_size", 64, "--calib_size", 16),
            *("--export_format", "hf", "--output_dir", exported),
        )
        flags = "--use_weight_only --weight_only_precision int4_awq --per_group --group_size 64".split()
        convert = ["convert", "--model_dir", PAIR / "target", "--output_dir", checkpoint, *flags]
        done = tandem(*convert, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"--weight_only_precision: says int4_awq, but .*target holds weights in bfloat16")
        done = tandem(*convert, "--quant_ckpt_path", exported, "--group_size", 128, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--group_size: is 128, but", done.stderr)
        tandem(*convert, "--quant_ckpt_path", exported)
        tandem("build", "--checkpoint_dir", checkpoint, "--output_dir", engine)
        server = Server(engine)
        try:
            status, answer = server.generate(QUESTION)
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertEqual(status, 200, answer)
        self.assertIn(KEY["tandem"], answer["text_output"])

    def test_an_engine_takes_no_longer_prompts_than_it_was_built_for(self):
        checkpoint, engine = self.work / "ckpt-short", self.work / "engine-short"
        tandem("convert", "--model_dir", PAIR / "draft", "--output_dir", checkpoint)
        tandem("build", "--checkpoint_dir", checkpoint, "--output_dir", engine, "--max_input_len", 5)
        done = tandem("run", engine, "--input_text", QUESTION, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"maximum prompt length is 5 tokens .* your prompt has \d+ tokens")
        done = tandem("run", engine, "--input_text", QUESTION, "--max_input_length", 5)
        self.assertIn("Output [Text 0", done.stdout)

    def test_a_damaged_engine_is_refused_naming_the_section(self):
        checkpoint, engine = self.work / "ckpt-damaged", self.work / "engine-damaged"
        tandem("convert", "--model_dir", PAIR / "draft", "--output_dir", checkpoint)
        tandem("build", "--checkpoint_dir", checkpoint, "--output_dir", engine)
        rank = engine / "rank0.engine"
        data = bytearray(rank.read_bytes())
        data[len(data) // 2] ^= 0x10
        rank.write_bytes(data)
        done = tandem("run", engine, "--no_draft", "--input_text", QUESTION, check=False)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("rank0.engine", done.stderr)

    def test_an_interrupted_quantize_says_what_is_kept_and_goes_on(self):
        output = self.work / "ckpt-interrupted"
        command = ["quantize", PAIR / "target", "--qformat", "int4_awq", "--awq_block_size", 64, "--calib_size", 128]
        command += ["--isa", "avx2", "--output_dir", output]
        for signal_, name in ((signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")):
            process = subprocess.Popen(
                [TANDEM, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            while "tokens: about" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            process.send_signal(signal_)
            _, error = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 6, error)
            self.assertRegex(
                error,
                rf"^tandem quantize: stopped by {name}; the output folder is as it was; \d+ of \d+ layers are calibrated "
                rf"and kept in {output}.calibration, and the same command goes on from there\n$",
            )
            self.assertFalse(output.exists())
            self.assertFalse(output.with_name(output.name + ".tmp").exists())
        tandem(*command)
        self.assertTrue((output / "config.json").exists())
        self.assertEqual(list(self.work.glob("ckpt-interrupted.*")), [])

    def test_a_second_run_into_the_same_folder_is_refused(self):
        output = self.work / "ckpt-twice"
        command = ["quantize", PAIR / "target", "--qformat", "int4_awq", "--awq_block_size", 64, "--calib_size", 64]
        command += ["--output_dir", output]
        first = subprocess.Popen([TANDEM, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "tokens: about" not in first.stdout.readline():
            self.assertIsNone(first.poll())
        for arguments in (command, ["convert", "--model_dir", PAIR / "draft", "--output_dir", output]):
            second = tandem(*arguments, check=False)
            self.assertEqual(second.returncode, 6, second.stderr)
            self.assertIn(f"{output}: another run is writing this folder", second.stderr)
        _, error = first.communicate(timeout=300)
        self.assertEqual(first.returncode, 0, error)
        self.assertTrue((output / "config.json").exists())

    def test_a_damaged_checkpoint_or_exported_folder_is_refused_naming_the_tensor(self):
        checkpoint, exported, engine = (self.work / name for name in ("ckpt-flipped", "exported-flipped", "engine-flipped"))
        tandem("convert", "--model_dir", PAIR / "draft", "--output_dir", checkpoint)
        tandem("quantize", PAIR / "draft", "--qformat", "int8_wo", "--export_format", "hf", "--output_dir", exported)
        for folder, file in ((checkpoint, "rank0.safetensors"), (exported, "model.safetensors")):
            done = tandem("inspect", folder, "--check")
            self.assertIn("each is a finite number, and all are as they were written", done.stdout)
            data = bytearray((folder / file).read_bytes())
            data[len(data) // 2] ^= 0x10
            (folder / file).write_bytes(data)
            for words in (["inspect", folder, "--check"], ["build", folder, "--output_dir", engine]):
                done = tandem(*words, check=False)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertRegex(done.stderr, file + r': tensor ".*" is damaged: its checksum differs')
        self.assertFalse(engine.exists())
        self.assertIn("; the files have no checksums", tandem("inspect", PAIR / "draft", "--check").stdout)


class BadModelTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = Path(self.folder.name) / "model"
        shutil.copytree(PAIR / "draft", self.model)

    def tearDown(self):
        self.folder.cleanup()

    def refused(self, *words, code=None):
        done = tandem("run", self.model, "--no_draft", "--input_text", "x", check=False)
        self.assertNotEqual(done.returncode, 0)
        if code is not None:
            self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def edit_config(self, **changes):
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps(config))

    def test_truncated_safetensors(self):
        weights = next(self.model.glob("*.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-1000])
        self.refused(weights.name, code=4)

    def test_weights_that_are_no_numbers_are_found_on_request(self):
        weights = next(self.model.glob("*.safetensors"))
        data = bytearray(weights.read_bytes())
        data_begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:data_begin])
        place = data_begin + header["model.layers.1.mlp.down_proj.weight"]["data_offsets"][0]
        data[place : place + 4] = bytes.fromhex("c07f 80ff")  # bf16: NaN, -infinity
        tandem("inspect", self.model, "--check")
        weights.write_bytes(data)
        for path in (self.model, weights):
            done = tandem("inspect", path, "--check", check=False)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("model.layers.1.mlp.down_proj.weight (2)", done.stderr)

    def test_weights_that_cannot_be_read_are_refused_at_once(self):
        weights = next(self.model.glob("*.safetensors"))
        weights.unlink()
        weights.symlink_to(weights.name)
        self.refused(weights.name, "symbolic links", code=5)
        weights.unlink()
        os.mkfifo(weights)
        self.refused(weights.name, "not a regular file", code=2)
        done = tandem("inspect", self.model, "--tensors", check=False)
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_a_tokenizer_that_is_a_pipe_is_refused_at_once(self):
        tokenizer = self.model / "tokenizer.json"
        tokenizer.unlink()
        os.mkfifo(tokenizer)
        self.refused("tokenizer.json", "not a regular file", code=2)
        done = tandem("run", PAIR / "target", self.model, "--input_text", "x", check=False)
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_an_architecture_that_is_not_supported_lists_those_that_are(self):
        self.edit_config(architectures=["MambaForCausalLM"])
        self.refused("MambaForCausalLM", "LlamaForCausalLM")

    def test_a_folder_that_is_no_model(self):
        shutil.rmtree(self.model)
        self.refused("model", code=3)

    def test_a_draft_with_another_tokenizer(self):
        path = self.model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        words = list(tokenizer["model"]["vocab"])
        a, b = words[3000], words[3001]
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
        path.write_text(json.dumps(tokenizer))
        done = tandem("run", PAIR / "target", self.model, "--input_text", "x", check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("tokenizer", done.stderr)


class ManyPromptsTest(unittest.TestCase):
    """`run` over a file of prompts, more of them than the queue takes."""

    OPTIONS = ["--max_output_len", 4, "--max_seq_len", 64, "--max_queue_size", 4, "--max_batch_size", 2]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.work = Path(self.folder.name)
        self.prompts = self.work / "prompts.csv"
        self.answers = self.work / "answers.csv"
        self.partial = self.work / "answers.csv.partial"
        self.files = ["--input_file", self.prompts, "--output_csv", self.answers]

    def tearDown(self):
        self.folder.cleanup()

    def write_prompts(self, count):
        lines = [f"1,{100 + i},{200 + i}" for i in range(count)]
        self.prompts.write_text("\r\n".join(lines))  # as a spreadsheet writes them
        return lines

    def test_the_queue_is_fed_and_the_order_kept(self):
        lines = self.write_prompts(40)
        done = json.loads(tandem("run", *self.files, *self.OPTIONS, "--json").stdout)
        self.assertEqual([answer["input"] for answer in done], lines)
        written = self.answers.read_text().splitlines()
        self.assertEqual(len(written), 40)
        self.assertFalse(self.partial.exists())
        for i in (0, 17, 39):
            self.prompts.write_text(lines[i])
            tandem("run", *self.files, *self.OPTIONS)
            self.assertEqual(self.answers.read_text(), written[i] + "\n")

    def test_what_is_finished_is_kept_when_a_prompt_is_refused(self):
        lines = self.write_prompts(10)
        lines[6] = ",".join(["7"] * 100)
        self.prompts.write_text("\n".join(lines))
        done = tandem("run", *self.files, *self.OPTIONS, "--json", check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        message = json.loads(done.stderr)["error"]["message"]
        self.assertIn("prompt 6: ", message)
        self.assertIn(f"the 6 answers before it are in {self.partial}", message)
        self.assertEqual(len(json.loads(done.stdout)), 6)
        self.assertEqual(len(self.partial.read_text().splitlines()), 6)
        self.assertFalse(self.answers.exists())

    def test_what_is_finished_is_kept_when_the_program_is_killed(self):
        self.write_prompts(200)
        process = subprocess.Popen(
            [TANDEM, "run", *map(str, self.files + self.OPTIONS)], stdout=subprocess.PIPE, text=True
        )
        for line in process.stdout:
            if line.startswith("Input [Text 5]"):
                break
        process.kill()
        process.communicate()
        self.assertGreaterEqual(len(self.partial.read_text().splitlines()), 5)
        self.assertFalse(self.answers.exists())

    def test_stop_words_leave_token_ids_alone_in_the_file(self):
        tandem("run", "--input_text", QUESTION, "--stop_words", "zzzzz", "--output_csv", self.answers)
        ids = self.answers.read_text().strip().split(",")
        self.assertTrue(all(int(token) >= 0 for token in ids), ids)


class LimitsTest(unittest.TestCase):
    """A refusal by the system gives a message and an exit code, never a signal."""

    def limited(self, prepare, *arguments, **options):
        done = subprocess.run(
            [TANDEM, *map(str, arguments)],
            stderr=subprocess.PIPE,
            stdout=options.pop("stdout", subprocess.DEVNULL),
            text=True,
            timeout=120,
            preexec_fn=prepare,
            **options,
        )
        self.assertEqual(done.returncode, 5, done.stderr)
        return done.stderr

    def test_file_size(self):
        with tempfile.TemporaryDirectory() as folder:
            error = self.limited(
                lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10)),
                *["convert", "--model_dir", PAIR / "draft", "--output_dir", Path(folder) / "out"],
            )
            self.assertIn("File too large", error)
            self.assertEqual(os.listdir(folder), [])

    def test_address_space(self):
        error = self.limited(
            lambda: resource.setrlimit(resource.RLIMIT_AS, (128 << 20, 128 << 20)),
            *["run", "--threads", 1, "--input_text", "x"],
        )
        self.assertRegex(error, "free|memory")

    def end_under(self, mib, *arguments):
        """(exit code, stderr) of the program with so much address space."""
        limit = (mib << 20, mib << 20)
        done = subprocess.run(
            [TANDEM, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
        )
        return done.returncode, done.stderr

    def test_too_little_address_space_of_any_amount(self):
        least = next(mib for mib in range(8, 200) if self.end_under(mib, "--version")[0] == 0)
        for mib in range(least, least + 40):
            for verb in (["run", "--input_text", "x"], ["serve", "--port", "0"]):
                with self.subTest(mib=mib, verb=verb[0]):
                    code, error = self.end_under(mib, *verb)
                    self.assertEqual(code, 5, error)
                    self.assertRegex(error, "^tandem( run| serve)?: .")

    def test_address_space_about_enough_for_the_models_and_the_threads(self):
        small = ["--input_text", "x", "--max_output_len", 4, "--kv_cache_bytes", 1000000, "--max_seq_len", 64]
        for mib in range(360, 400):
            with self.subTest(mib=mib):
                code, error = self.end_under(mib, "run", "--threads", 1, *small)
                # Within about 50 KB of address space the C library itself ends a process, before any of our
                # code could: it has no memory to note that a thread has something to clean up.
                if code == -signal.SIGABRT and error.startswith("Fatal glibc error: failed to register TLS destructor"):
                    continue
                self.assertIn(code, (0, 5), error)
                if code:
                    self.assertRegex(error, "^tandem( run)?: .")

    def test_descriptors(self):
        error = self.limited(
            lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5)), "serve", "--port", 0
        )
        self.assertIn("Too many open files", error)

    def test_threads(self):
        def prepare():
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
            if os.geteuid() == 0:
                os.setuid(65534)  # root has no such limit

        try:
            error = self.limited(prepare, "plan", "--threads", 4)
        except PermissionError:
            self.skipTest("the checkout cannot be read by others")
        self.assertIn("ulimit -u", error)

    def test_a_full_disk_under_stdout(self):
        for arguments in (["--help"], ["plan", "--json"], ["run", "--input_text", "x"], ["serve", "--port", 0]):
            with open("/dev/full", "w") as full:
                error = self.limited(None, *arguments, stdout=full)
            self.assertIn("stdout: cannot write: No space left", error)

    def test_closed_streams(self):
        def close():
            os.close(0)
            os.close(1)

        for arguments in (["run", "--input_text", "x"], ["serve", "--port", 0]):
            self.assertIn("stdout: cannot write", self.limited(close, *arguments))


class ServeCommandTest(unittest.TestCase):
    def test_the_address_is_json_under_json_and_keys_are_read_as_people_write_them(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys.txt"
            keys.write_bytes(b"# ours\r\n\r\nfirst-key\r\n  second-key  \r\n")
            server = Server("--json", "--api_key_file", keys)
        try:
            address = json.loads(server.lines[-1])
            self.assertEqual(address["port"], server.port)
            self.assertEqual(address["url"], f"http://127.0.0.1:{server.port}")
            self.assertEqual(len(server.lines), 1)
            for key, status in (("first-key", 200), ("second-key", 200), ("#", 401), ("third-key", 401)):
                headers = {"authorization": f"Bearer {key}"}
                self.assertEqual(server.request("GET", "/v1/models", headers=headers)[0], status)
        finally:
            self.assertEqual(server.stop(), 0)


    def test_a_log_file_has_no_colours_where_the_terminal_has(self):
        terminal, stderr = pty.openpty()
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log.txt"
            for more, is_coloured in (([], True), (["--log_file", log], False)):
                arguments = ["serve", "--model_repo", "/nowhere", "--rate_limit", "off", *map(str, more)]
                environment = {**os.environ, "TERM": "xterm"}
                environment.pop("NO_COLOR", None)
                done = subprocess.run([TANDEM, *arguments], stderr=stderr, env=environment, timeout=60, check=False)
                self.assertEqual(done.returncode, 3)
                said = os.read(terminal, 1 << 16).decode()
                self.assertIn("tandem serve: /nowhere: No such file or directory", said)
                self.assertEqual("\x1b[" in said, is_coloured, said)
            text = log.read_text()
        os.close(stderr)
        os.close(terminal)
        self.assertIn("accepted without effect here: rate_limit", text)
        self.assertIn("/nowhere: No such file or directory", text)
        self.assertNotIn("\x1b[", text)

    def test_a_model_that_is_not_decoupled_answers_infer(self):
        def row(name, datatype, value):
            return {"name": name, "datatype": datatype, "shape": [1, 1], "data": [value]}

        inputs = [row("text_input", "BYTES", QUESTION), row("max_tokens", "INT32", 120)]
        server = Server("--decoupled", "false")
        try:
            for model in ("ensemble", "tandem"):
                status, answer = server.post(f"/v2/models/{model}/infer", {"inputs": inputs})
                self.assertEqual(status, 200, answer)
                outputs = {output["name"]: output["data"] for output in answer["outputs"]}
                self.assertEqual(outputs["text_output"], [KEY["tandem"]])
            _, _, config = server.request("GET", "/v2/models/ensemble/config")
            self.assertFalse(json.loads(config).get("model_transaction_policy", {}).get("decoupled", False))
        finally:
            self.assertEqual(server.stop(), 0)


class VerbsTest(unittest.TestCase):
    def test_eval_finds_the_key_with_and_without_the_draft(self):
        done = json.loads(tandem("eval", "dictionary", "--sample", 1000, "--min_recall", 0.95, "--json").stdout)
        self.assertEqual(done["different_with_draft"], 0)
        self.assertEqual(len(done["tasks"]), 2)
        self.assertGreater(done["tasks"][1]["acceptance"], 0.3)

    def test_a_reader_that_has_seen_enough_ends_the_program_quietly(self):
        for arguments in (["inspect", PAIR / "draft", "--tensors"], ["--help"], ["plan", "--json"]):
            ends, writes = os.pipe()
            os.close(ends)
            process = subprocess.run([TANDEM, *map(str, arguments)], stdout=writes, stderr=subprocess.PIPE, timeout=60)
            os.close(writes)
            self.assertEqual((process.returncode, process.stderr), (-signal.SIGPIPE, b""))

    def test_run_prints_json_alone(self):
        done = json.loads(tandem("run", "--input_text", QUESTION, "--json").stdout)
        self.assertEqual(done[0]["outputs"][0]["text"], KEY["tandem"])

    def test_usage_errors_name_option_and_values(self):
        done = tandem("run", "--max_batch_size", 0, "--input_text", "x", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--max_batch_size", done.stderr)
        done = tandem("run", "--num_beams", 4, "--input_text", "x", check=False)
        self.assertIn("--num_beams", done.stderr)

    def test_what_the_machine_cannot_do_is_refused_by_name(self):
        for arguments, named in [
            (["--device", "gpu"], "--device"),
            (["--device", "cuda:"], "--device"),
            (["--device", "cuda:99"], "--device"),  # no such GPU, no driver or no CUDA in this build
            (["--device", "cpu", "--kv_cache_dtype", "int8"], "kv_cache_dtype"),  # without scales
        ]:
            done = tandem("plan", *arguments, check=False)
            self.assertNotIn(done.returncode, (0, 134), arguments)
            self.assertIn(named, done.stderr, arguments)

    def test_benchmarks_of_a_dummy_pair_check_its_tokens(self):
        shapes = [f"--{option}={PAIR / folder / 'config.json'}" for option, folder in (("dummy", "target"), ("draft_dummy", "draft"))]
        load = ["--input_len", 48, "--output_len", 8, "--runs", 1, "--max_seq_len", 512, "--json"]
        speculative = json.loads(
            tandem("bench", "speculative", *shapes, *load, "--batch", 2, "--draft_lens", "3", "--acceptances", "1").stdout
        )
        self.assertEqual(speculative["rows"][0]["acceptance"], 1)
        ttft = json.loads(tandem("bench", "ttft", shapes[0], *load).stdout)
        self.assertEqual(ttft["rows"][0]["prompt_tokens"], 48)
        usual = json.loads(tandem("bench", "ttft", shapes[0], "--runs", 1, "--max_seq_len", 600, "--json").stdout)
        self.assertEqual([row["prompt_tokens"] for row in usual["rows"]], [512, 598])

    def test_eval_fails_below_the_recall_that_is_asked_for(self):
        done = tandem("eval", "dictionary", PAIR / "draft", "--sample", 50, "--min_recall", 1, check=False)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("is below --min_recall 1", done.stderr)

    def test_sampling_options_reach_the_request(self):
        def sampled(*options):
            sampling = ["--top_k", 50, "--temperature", 5, "--max_output_len", 12, *options]
            done = json.loads(tandem("run", "--input_text", QUESTION, *sampling, "--json").stdout)
            return [output["text"] for output in done[0]["outputs"]]

        first = sampled("--random_seed", 1, "--num_return_sequences", 2)
        self.assertEqual(len(first), 2)
        self.assertEqual(first, sampled("--random_seed", 1, "--num_return_sequences", 2))
        self.assertNotEqual(first, sampled("--random_seed", 2, "--num_return_sequences", 2))
        greedy = sampled("--top_k", 1)
        self.assertEqual(greedy, sampled("--temperature", 0))
        word = greedy[0].split()[1]
        self.assertNotIn(word, sampled("--top_k", 1, "--bad_words", word)[0].split())
        self.assertNotIn(word, sampled("--top_k", 1, "--stop_words", word)[0].split())

    def test_run_names_its_own_options_in_errors(self):
        for options, named in [
            (["--max_output_len", 100000], "--max_output_len"),
            (["--stop_words", *"abcdefghijklmnopq"], "--stop_words"),
            (["--num_return_sequences", 65], "--num_return_sequences"),
        ]:
            done = tandem("run", "--input_text", "x", *options, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"tandem run: {named}: ", done.stderr)

    def test_the_environment_sets_what_the_command_line_does_not(self):
        with mock.patch.dict(os.environ, {"TANDEM_MAX_BATCH_SIZE": "3", "TANDEM_DEVICE": "cpu", "TANDEM_JSON": "1"}):
            self.assertEqual(json.loads(tandem("plan").stdout)["max_batch_size"], 3)
            self.assertEqual(json.loads(tandem("plan", "--max_batch_size", 5).stdout)["max_batch_size"], 5)
        with mock.patch.dict(os.environ, {"TANDEM_MAX_BATCH_SIZE": "many"}):
            done = tandem("plan", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("TANDEM_MAX_BATCH_SIZE: 'many' is not an integer", done.stderr)

    def test_doctor_measures_the_machine(self):
        found = json.loads(tandem("doctor", "--device", "cpu", "--threads", 1, "--json").stdout)
        self.assertIn("1 thread", found["backend"])
        self.assertGreater(found["read_bytes_per_s"], 1e8)
        self.assertGreater(found["bf16_flops_per_s"], 1e8)
        self.assertEqual(Path(found["embedded_pair"]).name, "dictionary")
        self.assertEqual(len(found["links"]), found["gpus"] * (found["gpus"] - 1) // 2)
        self.assertIn("nccl", found)

    def test_benchmarks_give_a_row_for_each_point(self):
        load = ["--dummy", PAIR / "draft/config.json", "--max_seq_len", 256, "--json"]
        short = ["--output_len", 4, "--num_requests", 4]
        throughput = json.loads(
            tandem("bench", "throughput", *load, *short, "--input_len", 16, "--max_batch_size", 2).stdout
        )
        self.assertEqual((throughput["requests"], throughput["concurrency"]), (4, 2))
        self.assertEqual(throughput["plain"]["output_tokens"], 16)
        with tempfile.TemporaryDirectory() as folder:
            vocab = json.loads((PAIR / "draft/config.json").read_text())["vocab_size"]
            subprocess.run([sys.executable, REPOSITORY / "bench/tokenizer.py", str(vocab), folder], check=True)
            # Without the embedded draft's own tokenizer beside it.
            shutil.copy(PAIR / "draft/config.json", folder)
            constrained = json.loads(
                tandem(
                    "bench", "throughput", *load, *short, "--input_len", 16, "--max_batch_size", 2,
                    "--draft_dummy", f"{folder}/config.json", "--grammar", "--tokenizer_dir", folder, "--runs", 1,
                ).stdout
            )  # fmt: skip
        self.assertEqual(constrained["plain_grammar"]["output_tokens"], 16)
        self.assertGreater(constrained["grammar_ratio"], 0)
        self.assertGreater(constrained["speedup_grammar"], 0)
        latency = json.loads(
            tandem("bench", "latency", *load, *short, "--runs", 1, "--input_len", "16,32", "--batch", "1,2").stdout
        )
        points = [(row["prompt_tokens"], row["batch"]) for row in latency["rows"]]
        self.assertEqual(points, [(16, 1), (16, 2), (32, 1), (32, 2)])
        ops = json.loads(tandem("bench", "ops", *load).stdout)["ops"]
        self.assertTrue({"qkv", "out", "gate_up", "down", "head"} <= {row["op"] for row in ops})

    def test_benchmarks_refuse_what_they_cannot_measure(self):
        for arguments, named in [
            (["fast"], "KIND: 'fast' is unknown"),
            (["latency", "--batch", "1,x"], "--batch: '1,x' has 'x', which is not an integer"),
            (["latency", "--batch", "0"], "--batch: '0' has '0', which is out of range"),
            (["speculative", "--acceptances", "0.5,1.5"], "--acceptances: '0.5,1.5' has '1.5'"),
            (["speculative"], "--dummy and --draft_dummy"),
            (["ttft", "--input_len", "0,16"], "--input_len: a prompt of 0 tokens"),
            (["throughput", "--window", 1], "--window: needs --input_len"),
            (["throughput", "--grammar", "--num_requests", 1, "--output_len", 2], "--grammar: needs --dummy"),
            (["serve", "--url", "http://x:abc"], '--url: "x:abc" has no valid port'),
        ]:
            done = tandem("bench", *arguments, check=False)
            self.assertEqual(done.returncode, 2, (arguments, done.stderr))
            self.assertIn(named, done.stderr)

    def test_bench_serve_loads_each_api_and_fails_when_requests_do(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys.txt"
            keys.write_text("the-key\n")
            server = Server("--api_key_file", keys)
        load = ["bench", "serve", "--url", f"http://127.0.0.1:{server.port}", "--num_requests", 4, "--output_len", 4]
        load += ["--concurrency", 2, "--json"]
        try:
            for endpoint in ("generate", "completions", "chat"):
                done = json.loads(tandem(*load, "--endpoint", endpoint, "--api_key", "the-key").stdout)
                self.assertEqual((done["requests"], done["errors"]), (4, 0), endpoint)
            refused = tandem(*load, check=False)
            self.assertEqual(refused.returncode, 6)
            self.assertIn("4 of 4 requests failed; the first: status 401", refused.stderr)
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertEqual(tandem(*load, check=False).returncode, 6)

    def test_every_verb_has_help_and_completion(self):
        verbs = "serve run eval bench convert build inspect plan doctor completion".split()
        script = tandem("completion").stdout
        for verb in verbs:
            self.assertIn("Usage", tandem(verb, "--help").stdout)
            self.assertIn(verb, script)
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        self.assertRegex(tandem("--version").stdout, r"^tandem \d+\.\d+\.\d+ \(\w+\)\n$")

    def test_the_reference_page_is_what_the_program_says(self):
        page = (REPOSITORY / "docs/cli.md").read_text()
        self.assertEqual(page, tandem("completion", "markdown").stdout, "run: tandem completion markdown >docs/cli.md")

    def test_plan_and_inspect_tell_bytes_and_tensors(self):
        plan = json.loads(tandem("plan", "--json").stdout)
        self.assertGreater(sum(line["bytes"] for line in plan["memory"]), 10_000_000)
        self.assertIn("LlamaForCausalLM", tandem("inspect", PAIR / "target").stdout)

    def test_plan_needs_no_room_for_the_weights_to_say_that_there_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads((PAIR / "target/config.json").read_text())
            config.update(hidden_size=16384, intermediate_size=65536, num_hidden_layers=1000)
            config.update(num_attention_heads=128, num_key_value_heads=128, head_dim=128)
            (Path(folder) / "config.json").write_text(json.dumps(config))
            dummy = ["--dummy", Path(folder) / "config.json"]
            # Verbs that load a model report it before they begin to load.
            for verb in (["plan"], ["serve", "--port", 0], ["run", "--input_text", "x"]):
                done = tandem(*verb, *dummy, check=False)
                self.assertEqual(done.returncode, 5, done.stderr)
                self.assertRegex(done.stderr, r"the weights need [\d.]+ TiB, .* are free")


if __name__ == "__main__":
    unittest.main()
