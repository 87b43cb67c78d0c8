"""The server as llgtrt's users start it and ask it: its launcher, its files, its flags, its routes, its own test cases
(but for tools), and the faults of its fork with a draft model, which are not here."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness
from harness import QUESTION, REPOSITORY, answer_key

PAIR = REPOSITORY / "models/dictionary"
LAUNCHER = REPOSITORY / "compat/launch-llgtrt.sh"
PROGRAM = Path(harness.TANDEM).resolve()
# Most of these cases were written for models that obey; this one knows definitions.
N = 10
RUNTIME = {
    "guaranteed_no_evict": False,
    "max_batch_size": 128,
    "max_num_tokens": 8192,
    "max_queue_size": 0,
    "enable_chunked_context": True,
    "enable_kv_cache_reuse": True,
    "kv_cache_free_gpu_mem_fraction": 0.2,
    "kv_cache_host_memory_megabytes": 0,
    "enable_batch_size_tuning": True,
    "enable_max_num_tokens_tuning": True,
    "kv_cache_onboard_blocks": True,
    "cross_kv_cache_fraction": None,
    "secondary_offload_min_priority": None,
    "event_buffer_max_size": None,
}


def launch(*arguments):
    """Runs the launcher to its end."""
    return subprocess.run(
        [LAUNCHER, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TANDEM": str(PROGRAM)},
        check=False,
    )


class Launched(harness.Server):
    """The launcher's server; the launcher becomes it, so it is stopped by the same process id."""

    command = ("env", f"TANDEM={PROGRAM}", str(LAUNCHER))


class Folder:
    """A copy of the embedded target whose weights are links, with files of llgtrt beside them."""

    def __init__(self, **files):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        for file in (PAIR / "target").iterdir():
            os.symlink(file, self.path / file.name)
        for name, text in files.items():
            self.write(name.replace("__", "."), text)

    def write(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (self.path / name).write_text(text)

    def close(self):
        self.folder.cleanup()


class LaunchTest(unittest.TestCase):
    def folder(self, **files):
        folder = Folder(**files)
        self.addCleanup(folder.close)
        return folder

    def refused(self, *arguments, code=2):
        done = launch(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def shown(self, *arguments):
        done = launch(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_names_what_it_needs(self):
        self.assertIn("names no target", self.refused())
        # As where $TARGET is not set, with quotes and without.
        self.assertIn("MODEL: the value is empty", self.refused("", "--port", "0"))
        self.assertIn("--as_llgtrt: no model is named", self.refused("--port", "0"))

    def test_options_and_keys_are_refused_by_name(self):
        target = PAIR / "target"
        self.assertIn("--lora_root: is not supported", self.refused(target, "--lora-root", "x"))
        self.assertIn("--test_py: is not supported", self.refused(target, "--test-py"))
        self.assertIn("--prot: there is no such option", self.refused(target, "--prot", "1"))
        folder = self.folder(llgtrt__json5="{runtime: {max_batchsize: 3}}")
        unknown = "runtime.max_batchsize: there is no such key; did you mean runtime.max_batch_size?"
        self.assertIn(f"{folder.path}/llgtrt.json5: {unknown}", self.refused(folder.path))
        folder.write("llgtrt.json5", "{py: {input_processor: 'x.py'}}")
        self.assertIn("py.input_processor: is not supported", self.refused(folder.path))
        folder.write("llgtrt.json5", "{runtime: {max_batch_size: 0}}")
        self.assertIn(
            "runtime.max_batch_size: '0' is out of range; it takes a number from 1 to 4096", self.refused(folder.path)
        )
        folder.write("llgtrt.json5", "{runtime: {\n  max_batch_size: 1 max")
        self.assertIn("llgtrt.json5: line 2 column 21: a comma", self.refused(folder.path))

    def test_runtime_json_is_strict(self):
        folder = self.folder(runtime__json={**RUNTIME, "max_queue": 3})
        self.assertIn("runtime.max_queue: there is no such key", self.refused(folder.path))
        folder.write("runtime.json", {key: value for key, value in RUNTIME.items() if key != "max_num_tokens"})
        self.assertIn("runtime.json: max_num_tokens is missing", self.refused(folder.path))
        folder.write("runtime.json", json.dumps(RUNTIME)[:-1] + ", }")
        self.assertIn("runtime.json, line 1: not valid JSON: ", self.refused(folder.path))
        for key, value in (("enable_chunked_context", 1), ("max_batch_size", "128"), ("max_num_tokens", None)):
            folder.write("runtime.json", {**RUNTIME, key: value})
            self.assertRegex(self.refused(folder.path), rf"runtime\.json: runtime\.{key}: must be ")
        folder.write("runtime.json", {**RUNTIME, "cross_kv_cache_fraction": 0.5})
        self.assertIn("0.5 is for encoder-decoder models", self.refused(folder.path))

    def test_files_are_merged_in_order(self):
        folder = self.folder(
            llgtrt__json5="{runtime: {max_batch_size: 3}}",
            one__json5="{runtime: {max_batch_size: 4, max_num_tokens: 1e3}} // one",
            two__json5="{tokenizer: {json_start_token: null}, runtime: {max_batch_size: 0x10}}",
        )
        own = self.shown(folder.path, "--print-config")
        self.assertIn("    max_batch_size: 3,\n", own)
        self.assertIn("    max_num_tokens: 8192,\n", own)
        self.assertIn("    // Sequences that run in one step\n", own)
        files = ("-C", folder.path / "one.json5", "--config", folder.path / "two.json5")
        named = self.shown(folder.path, *files, "--print-config")
        self.assertIn("    max_batch_size: 16,\n", named)
        self.assertRegex(named, r"    max_num_tokens: (1000(\.0)?|1e\+?0?3),\n")
        folder.write("runtime.json", {**RUNTIME, "max_num_tokens": 4000})
        self.assertIn("    max_num_tokens: 4000,\n", self.shown(folder.path, "--print-config"))
        # What is shown is a configuration again.
        folder.write("shown.json5", own)
        os.remove(folder.path / "runtime.json")
        self.assertEqual(self.shown(folder.path, "-C", folder.path / "shown.json5", "--print-config"), own)

    def test_templates_are_shown(self):
        template = json.loads((PAIR / "target/tokenizer_config.json").read_text())["chat_template"]
        target = PAIR / "target"
        self.assertEqual(self.shown(target, "--print-chat-template"), template)
        complete = self.shown(target, "--print-complete-config")
        self.assertIn(f"    chat_template: {json.dumps(template)},\n", complete)
        self.assertIn('    bos_token: "<s>",\n', complete)
        folder = self.folder(llgtrt__json5="{tokenizer: {chat_template: 'config'}}")
        self.assertEqual(self.shown(folder.path, "--print-chat-template"), "config")
        folder.write("chat_template.j2", "beside")
        self.assertEqual(self.shown(folder.path, "--print-chat-template"), "beside")
        folder.write("named.j2", "named")
        self.assertEqual(
            self.shown(folder.path, "--chat-template", folder.path / "named.j2", "--print-chat-template"), "named"
        )

    def test_a_public_address_needs_a_key_or_a_word(self):
        refusal = self.refused(PAIR / "target", "-H", "0.0.0.0")
        self.assertIn("--host: 0.0.0.0 can be reached from other machines", refusal)


class ConfiguredTest(unittest.TestCase):
    """A target with both files and no draft."""

    @classmethod
    def setUpClass(cls):
        # The end of a user's turn begins texts, only to be seen: `{{ bos_token }}` of the template shows it too.
        config = {"tokenizer": {"bos_token": {"content": "<|end|>"}, "n_vocab_override": cls.rows()}}
        cls.folder = Folder(runtime__json={**RUNTIME, "max_batch_size": 9}, llgtrt__json5=json.dumps(config))
        cls.server = Launched(cls.folder.path, "--debug", "--max_num_tokens", "300", "--tokenizer", PAIR / "target")

    @staticmethod
    def rows():
        return json.loads((PAIR / "target/config.json").read_text())["vocab_size"]

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)
        cls.folder.close()

    def test_the_command_line_goes_over_the_files(self):
        self.assertEqual(self.server.metric("tandem_batch_size_bound"), 9)
        self.assertEqual(self.server.metric("tandem_num_tokens_bound"), 300)
        output = "".join(self.server.lines)
        self.assertIn(f"configuration: {self.folder.path}/llgtrt.json5", output)
        self.assertIn(f"configuration: {self.folder.path}/runtime.json", output)
        self.assertIn("at most 256 sequences wait for a turn (--max_queue_size)", output)

    def test_the_tokenizers_section_takes_effect(self):
        body = {"model": "model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        status, reply = self.server.post("/v1/chat/completions", {**body, "return_expanded_prompt": True})
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply["expanded_prompt"], "<|end|><|user|>x<|end|><|assistant|>")
        bare = {"add_special_tokens": False}
        end, text, begun = (
            self.server.post("/tokenize", body)[1]["tokens"]
            for body in ({"prompt": "<|end|>", **bare}, {"prompt": "x", **bare}, {"prompt": "x"})
        )
        self.assertEqual(begun, end + text)


class DraftTest(unittest.TestCase):
    """Target and draft, as the fork starts them."""

    @classmethod
    def setUpClass(cls):
        cls.server = Launched(PAIR / "target", PAIR / "draft", "--n-draft-tokens", "5", "--draft-tokenizer", "unused",
                              "--draft-token-acc-rate", "0.8", "--kv_cache_free_gpu_mem_fraction", "0.2")  # fmt: skip

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def chat(self, content=QUESTION, **fields):
        body = {"model": "model", "messages": [{"role": "user", "content": content}], "max_tokens": 50, **fields}
        status, reply = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, reply)
        return reply

    def texts(self, reply):
        return [choice["message"]["content"] for choice in reply["choices"]]

    # llgtrt's own cases.

    def test_simple_chat(self):
        # The small model is sure of its answers; past their end it is not.
        reply = self.chat(temperature=1.2, n=N, min_tokens=50)
        self.assertEqual(len(reply["choices"]), N)
        self.assertGreater(len(set(self.texts(reply))), 1)

    def test_stream_chat(self):
        body = {"model": "model", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 50,
                "temperature": 1.2, "min_tokens": 50, "n": N, "stream": True}  # fmt: skip
        events = self.server.events("/v1/chat/completions", body)
        self.assertEqual(events.pop(), "[DONE]")
        texts = [""] * N
        for event in events:
            for choice in json.loads(event)["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        self.assertTrue(all(texts), texts)
        self.assertGreater(len(set(texts)), 1)

    def test_resp_format_json_object(self):
        # Cases with an open object need a model that ends one; the schema below closes it.
        reply = self.chat(temperature=0.8, n=N, response_format={"type": "json_object"})
        self.assertEqual(len(reply["choices"]), N)
        for choice in reply["choices"]:
            if choice["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(choice["message"]["content"]), dict)
            else:
                self.assertTrue(choice["message"]["content"].lstrip().startswith("{"), choice)

    def test_resp_format_json_schema(self):
        schema = {
            "type": "object",
            "properties": {
                "joke": {"type": "string", "maxLength": 12},
                "rating": {"type": "integer", "maximum": 9, "minimum": 0},
            },
            "additionalProperties": False,
            "required": ["joke", "rating"],
            "x-guidance": {"whitespace_flexible": False},
        }
        format = {"type": "json_schema", "json_schema": {"strict": True, "schema": schema}}
        reply = self.chat(temperature=0.8, n=N, response_format=format)
        stopped = [choice for choice in reply["choices"] if choice["finish_reason"] == "stop"]
        self.assertTrue(stopped, reply)
        for choice in stopped:
            self.assertEqual(set(json.loads(choice["message"]["content"])), {"joke", "rating"})

    def test_resp_string_schema(self):
        # A definition instead of a sum: this model knows no other right answer.
        right = answer_key()["tandem"]
        schema = {
            "$schema": "http://json-schema.org/draft-06/schema#",
            "type": "string",
            "enum": ["1", right, "3 three", None],
        }
        format = {"type": "json_schema", "json_schema": {"strict": True, "schema": schema}}
        reply = self.chat(temperature=0.0, n=N, max_tokens=200, response_format=format)
        for text in self.texts(reply):
            self.assertEqual(json.loads(text), right)

    # Its manual cases.

    def test_completions_of_n(self):
        body = {"model": "model", "prompt": "noun: a", "max_tokens": 20, "temperature": 0.7, "n": 5}
        status, reply = self.server.post("/v1/completions", body)
        self.assertEqual(status, 200, reply)
        self.assertEqual(len(reply["choices"]), 5)
        events = self.server.events("/v1/completions", {**body, "stream": True})
        self.assertEqual({json.loads(event)["choices"][0]["index"] for event in events[:-1]}, set(range(5)))

    def test_min_tokens(self):
        reply = self.chat(min_tokens=50, max_tokens=50, temperature=1.2)
        self.assertEqual(reply["usage"]["completion_tokens"], 50)

    def test_a_system_message_in_the_middle(self):
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "system", "content": "Answer."},
            {"role": "user", "content": QUESTION},
        ]
        self.chat(messages=messages)

    def test_malformed_tool_calls_do_not_end_the_server(self):
        user = {"role": "user", "content": "x"}
        messages = [user, {"role": "assistant", "tool_calls": "none"}, user]
        status, reply = self.server.post("/v1/chat/completions", {"model": "model", "messages": messages})
        self.assertEqual(status, 400, reply)
        self.assertIn("messages[1].tool_calls", reply["error"]["message"])
        self.chat()

    def test_lark_and_a_bounded_reasoning_before_a_boxed_number(self):
        grammar = r'start: "<think>" /[a-z ]{1,20}/ "</think>\nThe answer is \\boxed{" /[0-9]{1,3}/ "}"'
        lark = {"type": "lark_grammar", "lark_grammar": grammar}
        reply = self.chat(temperature=0.8, response_format=lark, max_tokens=100)
        message = reply["choices"][0]["message"]
        text = (message.get("reasoning_content") or "") + message["content"]
        self.assertRegex(text, r"(?s)[a-z ]{1,20}.*The answer is \\boxed\{[0-9]{1,3}\}$")

    def test_a_seed_gives_the_same_text(self):
        first, again = (self.texts(self.chat(seed=42, temperature=1.2, return_expanded_prompt=True)) for _ in range(2))
        self.assertEqual(first, again)

    # Its routes.

    def test_run(self):
        grammar = {"grammars": [{"lark_grammar": 'start: "a" /[bc]{3}/ "."'}]}
        body = {"controller": "llguidance", "controller_arg": {"grammar": grammar}, "temperature": 0.9}
        messages = [{"role": "user", "content": "x"}]
        for route, prompt in (("/v1/run", {"prompt": "abc"}), ("/guidance", {"messages": messages})):
            events = self.server.events(route, {**body, **prompt})
            self.assertEqual(events.pop(), "[DONE]")
            events = [json.loads(event) for event in events]
            self.assertEqual(list(events[0]), ["id", "object", "created", "model"])
            self.assertEqual(events[0]["object"], "initial-run")
            forks = [fork for event in events[1:] for fork in event["forks"]]
            self.assertRegex("".join(fork["text"] for fork in forks), r"^a[bc]{3}\.$")
            self.assertEqual([fork.get("finish_reason") for fork in forks][-1], "stop")
            usage = events[-1]["usage"]
            self.assertEqual(usage["cost"], 2 * usage["sampled_tokens"] + usage["ff_tokens"])
        broken = {"grammar": {"grammars": [{"lark_grammar": "start: ("}]}}
        status, _, text = self.server.request(
            "POST", "/v1/run", {**body, "controller_arg": broken, "prompt": "a"}
        )
        self.assertEqual(status, 400, text)
        self.assertEqual(json.loads(text)["error"]["param"], "controller_arg.grammar")

    def test_health(self):
        for route in ("live", "model"):
            status, _, text = self.server.request("GET", f"/v1/health/{route}")
            self.assertEqual((status, text), (200, "Check complete"))
        self.assertEqual(self.server.request("GET", "/v1/health/ready")[0], 200)

    # The faults of the fork (docs/coming-from/llgtrt.md has the same list).

    def test_fork_drafts_are_used_without_any_build_flag(self):
        details = self.chat(temperature=0)["usage"]["completion_tokens_details"]
        self.assertGreater(details["accepted_prediction_tokens"], 0)

    def test_fork_the_end_is_not_suppressed_near_max_tokens(self):
        whole = self.chat(temperature=0, max_tokens=200)
        tokens = whole["usage"]["completion_tokens"]
        for more in range(1, 8):
            reply = self.chat(temperature=0, max_tokens=tokens + more)
            self.assertEqual(self.texts(reply), self.texts(whole))
            self.assertEqual(reply["choices"][0]["finish_reason"], "stop")

    def test_fork_stop_strings_are_cut_out(self):
        whole = self.texts(self.chat(temperature=0))[0]
        stop = re.search(r" \w+ \w+", whole[10:])[0]
        reply = self.chat(temperature=0, stop=[stop])
        self.assertEqual(self.texts(reply)[0], whole[: whole.index(stop)])

    def test_fork_finish_reason_is_that_of_the_answer(self):
        self.assertEqual(self.chat(temperature=0, stop=["two"])["choices"][0]["finish_reason"], "stop")
        self.assertEqual(self.chat(temperature=0, max_tokens=200)["choices"][0]["finish_reason"], "stop")
        self.assertEqual(self.chat(temperature=0, max_tokens=3)["choices"][0]["finish_reason"], "length")

    def test_fork_streams_with_a_draft(self):
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 50, "temperature": 0, "stream": True}
        events = self.server.events("/v1/chat/completions", body)
        self.assertGreater(len(events), 5)
        text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])
        self.assertEqual([text], self.texts(self.chat(temperature=0)))

    def test_fork_n_choices_with_a_draft(self):
        reply = self.chat(temperature=1.0, n=3, seed=5)
        self.assertEqual(len(reply["choices"]), 3)
        self.assertGreater(reply["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 0)

    def test_fork_a_grammar_holds_with_a_draft(self):
        reply = self.chat(temperature=0, response_format={"type": "regex", "regex": "(ab|ba){6}"})
        self.assertRegex(self.texts(reply)[0], r"^(ab|ba){6}$")

    def test_fork_sampled_text_is_that_without_a_draft(self):
        for seed in range(5):
            replies = [self.chat(temperature=1.0, seed=seed, use_draft=use) for use in (True, False)]
            self.assertEqual(*map(self.texts, replies))

    def test_fork_requests_share_steps(self):
        steps, words = self.server.metric("tandem_engine_steps_total"), list(answer_key())[::7000][:8]
        with concurrent.futures.ThreadPoolExecutor(len(words)) as pool:
            replies = list(pool.map(lambda word: self.chat(f'What does "{word}" mean?', temperature=0), words))
        tokens = sum(reply["usage"]["completion_tokens"] for reply in replies)
        self.assertLess(self.server.metric("tandem_engine_steps_total") - steps, tokens)

    def test_fork_usage_counts_the_tokens_that_were_drawn(self):
        reply = self.chat(temperature=0, logprobs=True)
        self.assertEqual(reply["usage"]["completion_tokens"], len(reply["choices"][0]["logprobs"]["content"]))
        self.assertGreater(self.server.metric("tandem_drafts_accepted_total"), 0)

    def test_fork_a_draft_with_another_vocabulary_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder) / "draft"
            shutil.copytree(PAIR / "draft", draft)
            tokenizer = json.loads((draft / "tokenizer.json").read_text())
            vocabulary = tokenizer["model"]["vocab"]
            first, second = list(vocabulary)[300:302]
            vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
            (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
            done = launch(PAIR / "target", draft, "--port", "0")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("the draft's tokenizer differs from the target's", done.stderr)


class KeyTest(unittest.TestCase):
    """Which routes ask for a key."""

    @classmethod
    def setUpClass(cls):
        cls.server = Launched(PAIR / "target", "--api-key", "secret", "--kv_cache_free_gpu_mem_fraction", "0.2")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def test_only_live_and_ready_are_open(self):
        self.assertEqual(self.server.request("GET", "/v1/health/live")[0], 200)
        self.assertEqual(self.server.request("GET", "/v1/health/ready")[0], 200)
        for method, path in (("GET", "/v1/health/model"), ("POST", "/v1/run"), ("POST", "/guidance")):
            self.assertEqual(self.server.request(method, path)[0], 401)
            self.assertEqual(self.server.request(method, path, headers={"authorization": "Bearer wrong"})[0], 401)
        key = {"authorization": "Bearer secret"}
        self.assertEqual(self.server.request("GET", "/v1/health/model", headers=key)[0], 200)


if __name__ == "__main__":
    unittest.main()
