"""lm-eval's local-completions against a real server: log-likelihoods and generation on two tasks over the dictionary, with the
model's own tokenizer and nothing from a hub.

    tools/test_python --with lm_eval tests/clients/lm_eval_test.py build/dev/tandem
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from harness import REPOSITORY, ServerTest, answer_key

WORDS = 40
PROMPT_OF_A_CHAT = "<s><|user|>What does \"{}\" mean?<|end|><|assistant|>"


def write_data(folder):
    every = list(answer_key().items())
    words = every[:: len(every) // WORDS][:WORDS]
    with open(folder / "choice.jsonl", "w") as choice, open(folder / "definition.jsonl", "w") as definition:
        for index, (word, meaning) in enumerate(words):
            question = PROMPT_OF_A_CHAT.format(word)
            definitions = [words[(index + step) % WORDS][1] for step in range(4)]
            answer = index % 4
            definitions[0], definitions[answer] = definitions[answer], definitions[0]
            print(json.dumps({"question": question, "definitions": definitions, "answer": answer}), file=choice)
            print(json.dumps({"question": question, "definition": meaning}), file=definition)


class LmEval(ServerTest):
    def evaluate(self, folder, task, **model):
        arguments = {
            "model": "tandem",
            "base_url": f"http://127.0.0.1:{self.server.port}/v1/completions",
            "num_concurrent": 8,
            "max_retries": 1,
            **model,
        }
        done = subprocess.run(
            [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", task, "--include_path", folder]
            + ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
            + ["--output_path", folder / "results", "--seed", "1234"],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "OPENAI_API_KEY": "unused"},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        newest = max((folder / "results").rglob("results_*.json"), key=os.path.getmtime)
        return json.loads(newest.read_text())["results"][task]

    def test_the_dictionary_is_known(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for task in (REPOSITORY / "tests/clients/lm_eval").glob("*.yaml"):
                shutil.copy(task, folder)
            write_data(folder)
            local = {"tokenizer": REPOSITORY / "models/dictionary/target", "tokenizer_backend": "huggingface"}
            self.assertEqual(self.evaluate(folder, "dictionary_choice", **local)["acc,none"], 1.0)
            self.assertEqual(self.evaluate(folder, "dictionary_choice", tokenizer_backend="remote")["acc,none"], 1.0)
            self.assertEqual(self.evaluate(folder, "dictionary_definition", **local)["exact_match,none"], 1.0)


if __name__ == "__main__":
    unittest.main()
