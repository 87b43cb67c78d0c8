"""`--tensor_parallel_size`, `--pipeline_parallel_size`: the embedded pair over ranks on the CPU answers as it does on one."""

import concurrent.futures
import json
import os
import tempfile
import unittest
from pathlib import Path

from harness import REPOSITORY, Server, answer_key, tandem

CORES = len(os.sched_getaffinity(0))
KEY = answer_key()
WORDS = list(KEY)[::400]
TARGET = REPOSITORY / "models/dictionary/target"
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["noun", "verb"]}, "count": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["kind", "count"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


class RanksTest(unittest.TestCase):
    def answers(self, server):
        """All words, eight at a time, half of them streamed."""

        def ask(numbered):
            number, word = numbered
            question = f'What does "{word}" mean?'
            if number % 2 == 0:
                return "".join(server.stream(question))
            status, answer = server.generate(question)
            self.assertEqual(status, 200, answer)
            return answer["text_output"]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(ask, enumerate(WORDS)))

    def test_a_server_answers_as_on_one_rank(self):
        for options in (
            ("--tensor_parallel_size", "2"),
            ("--tp_size", "4", "--draft_tensor_parallel_size", "1"),
            ("--tp_size", "2", "--no_draft"),
            ("--pipeline_parallel_size", "2"),
            ("--pp_size", "2", "--tp_size", "2"),
            ("--pp_size", "2", "--no_draft"),
            ("--draft_device", "cpu"),
            ("--tp_size", "2", "--draft_device", "cpu,cpu"),
            ("--pp_size", "2", "--draft_device", "cpu", "--use_draft_logits"),
        ):
            with self.subTest(options=options):
                server = Server("--device", "cpu", *options)
                try:
                    sizes = dict(zip(options[::2], options[1::2]))
                    ranks = int(sizes.get("--tp_size", sizes.get("--tensor_parallel_size", 1))) * int(sizes.get("--pp_size", sizes.get("--pipeline_parallel_size", 1)))
                    ranks += sizes.get("--draft_device", "").count("cpu")
                    self.assertEqual(server.metric("tandem_ranks"), ranks)
                    for word, answer in zip(WORDS, self.answers(server)):
                        self.assertIn(KEY[word], answer)
                    status, reply = server.post(
                        "/v1/chat/completions",
                        {
                            "messages": [{"role": "user", "content": "Define tandem"}],
                            "max_tokens": 60,
                            "response_format": {
                                "type": "json_schema",
                                "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
                            },
                        },
                    )
                    self.assertEqual(status, 200, reply)
                    value = json.loads(reply["choices"][0]["message"]["content"])
                    self.assertIn(value["kind"], ("noun", "verb"))
                finally:
                    self.assertEqual(server.stop(), 0, "".join(server.lines))

    def test_checkpoints_and_engines_of_other_numbers_of_ranks_are_cut_again(self):
        ask = ("--input_text", "Define tandem", "--max_output_len", "60", "--device", "cpu", "--no_draft")
        expected = tandem("run", TARGET, *ask).stdout
        self.assertIn("tandem", expected)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint, engine = Path(folder) / "checkpoint", Path(folder) / "engine"
            tandem("convert", "--model_dir", TARGET, "--output_dir", checkpoint, "--tp_size", "2", "--pp_size", "2")
            tandem("build", "--checkpoint_dir", checkpoint, "--output_dir", engine)
            for model in (checkpoint, engine):
                ran = tandem("run", model, "--tokenizer_dir", TARGET, *ask, "--log_level", "info")
                self.assertEqual(ran.stdout, expected, model)
                if CORES > 1:
                    self.assertIn("the model runs on 2 ranks, as its files were built", ran.stderr)
                for ranks in (("--tensor_parallel_size", "4"), ("--pipeline_parallel_size", "2")):
                    answer = tandem("run", model, "--tokenizer_dir", TARGET, *ask, *ranks).stdout
                    self.assertEqual(answer, expected, model)

    def test_a_plan_shows_what_each_stage_takes(self):
        plan = json.loads(tandem("plan", "--device", "cpu", "--pp_size", "2", "--tp_size", "2", "--json").stdout)
        weights = {line["note"]: line["bytes"] for line in plan["memory"] if line["what"] == "target weights"}
        self.assertEqual(set(weights), {f"stage {stage} of 2, on each of 2 ranks" for stage in (1, 2)})
        drafts = [line for line in plan["memory"] if line["what"] == "draft weights"]
        self.assertEqual([line["note"] for line in drafts], ["on each of 4 ranks"])
        alone = json.loads(tandem("plan", "--device", "cpu", "--tp_size", "2", "--json").stdout)
        whole = next(line["bytes"] for line in alone["memory"] if line["what"] == "target weights")
        self.assertLess(max(weights.values()), whole)

    def test_the_plan_tells_what_lies_on_each_rank(self):
        ask = ("plan", "--device", "cpu", "--threads", "2")
        one = tandem(*ask).stdout
        self.assertNotIn("rank", one)
        both = tandem(*ask, "--tensor_parallel_size", "2").stdout
        self.assertIn("  rank  device     weights       cache   workspace        free\n", both)
        ranks = json.loads(tandem(*ask, "--tensor_parallel_size", "2", "--json").stdout)["ranks"]
        self.assertEqual([rank["device"] for rank in ranks], ["cpu", "cpu"])
        whole = json.loads(tandem(*ask, "--json").stdout)
        weights = sum(line["bytes"] for line in whole["memory"] if line["what"].endswith("weights"))
        for rank in ranks:
            self.assertTrue(weights / 2 <= rank["weight_bytes"] < weights, (weights, ranks))
            self.assertGreater(rank["free_bytes"], rank["weight_bytes"] + rank["cache_bytes"] + rank["workspace_bytes"])

    def test_the_plan_shows_where_a_draft_of_its_own_lies(self):
        ask = ("plan", "--device", "cpu", "--threads", "2", "--draft_device", "cpu", "--json")
        plan = json.loads(tandem(*ask).stdout)
        self.assertEqual(len(plan["ranks"]), 2)
        notes = {line["what"]: line["note"] for line in plan["memory"]}
        self.assertEqual((notes["target weights"], notes["draft weights"]), ("rank 0", "rank 1"))
        self.assertEqual((notes["target keys and values"], notes["draft keys and values"]), ("rank 0", "rank 1"))
        self.assertGreater(plan["ranks"][0]["weight_bytes"], plan["ranks"][1]["weight_bytes"])

    def test_a_draft_device_without_a_draft_is_named(self):
        done = tandem("run", "--device", "cpu", "--no_draft", "--draft_device", "cpu", "--input_text", "Define tandem")
        self.assertIn("--draft_device cpu: has no effect without a draft", done.stderr)

    def test_a_default_that_does_not_divide_becomes_one_rank(self):
        done = tandem(
            "run", "--device", "cpu", "--no_draft", "--world_size", "3", "--input_text", "Define tandem",
            "--max_output_len", "60", "--threads", "3",
        )  # fmt: skip
        self.assertIn("tandem", done.stdout)
        self.assertIn("--world_size" if CORES < 3 else "attention heads (8)", done.stderr)

    def test_what_does_not_divide_is_refused_by_name_before_loading(self):
        for options, named in (
            (("--tensor_parallel_size", "3"), "does not divide the attention heads (8)"),
            (("--tensor_parallel_size", "65"), "--tensor_parallel_size"),
            (("--tensor_parallel_size", "-1"), "--tensor_parallel_size"),
            (("--tensor_parallel_size", "4", "--device", "cpu,cpu"), "--device names 2 devices"),
            (("--device", "cpu,cuda:1"), "is no list of devices"),
            (("--pipeline_parallel_size", "9"), "--pipeline_parallel_size: pp_size is 9; it must be between 1 and"),
            (("--pipeline_parallel_size", "0"), "--pipeline_parallel_size"),
            (("--pp_size", "2", "--tp_size", "3"), "--tensor_parallel_size: tp_size is 3"),
            (("--tensor_parallel_size", "2", "--draft_tensor_parallel_size", "4"), "which is 2"),
            (("--draft_device", "cuda:0"), "--draft_device cuda:0: the target is on the CPU"),
            (("--draft_device", "gpu"), "--draft_device: 'gpu' is none of cpu, cuda"),
            (("--draft_device", "auto"), "--draft_device auto: name the device"),
            (("--draft_device", "cpu,cpu,cpu"), "--draft_device: tp_size is 3"),
        ):
            with self.subTest(options=options):
                done = tandem("run", "--device", "cpu", "--input_text", "tandem", *options, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(named, done.stderr)


if __name__ == "__main__":
    unittest.main()
