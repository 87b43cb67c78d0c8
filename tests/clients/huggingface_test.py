"""huggingface_hub's InferenceClient against a real server with --tgi_compat: what users of text-generation-inference rely on.

    tools/test_python --with clients tests/clients/huggingface_test.py build/dev/tandem
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from huggingface_hub import InferenceClient
from huggingface_hub.inference._generated.types import TextGenerationOutputDetails, TextGenerationStreamOutputStreamDetails

from harness import QUESTION, ServerTest, answer_key

ANSWER = answer_key()["tandem"]


class HuggingFace(ServerTest):
    arguments = ("--tgi_compat",)

    def setUp(self):
        super().setUp()
        # It closes its streams when it goes.
        self.client = InferenceClient(model=f"http://127.0.0.1:{self.server.port}/invocations", timeout=120)

    def generate(self, **options):
        return self.client.text_generation(QUESTION, **{"max_new_tokens": 100, **options})

    def test_text_alone(self):
        self.assertEqual(self.generate().strip(), ANSWER)

    def test_details(self):
        result = self.generate(details=True, decoder_input_details=True, top_n_tokens=2)
        self.assertIsInstance(result.generated_text, str)
        self.assertIsInstance(result.details, TextGenerationOutputDetails)
        self.assertEqual(result.details.finish_reason, "eos_token")
        self.assertEqual(result.details.generated_tokens, len(result.details.tokens))
        self.assertEqual("".join(token.text for token in result.details.tokens), result.generated_text)
        self.assertTrue(result.details.tokens[-1].special)
        self.assertGreater(len(result.details.prefill), 3)
        self.assertEqual(len(result.details.top_tokens[0]), 2)

    def test_a_stream(self):
        tokens = list(self.generate(stream=True, details=True))
        for token in tokens:
            self.assertIsInstance(token.token.id, int)
            self.assertIsInstance(token.token.logprob, float)
        self.assertIsInstance(tokens[-1].generated_text, str)
        self.assertIsInstance(tokens[-1].details, TextGenerationStreamOutputStreamDetails)
        self.assertEqual("".join(self.generate(stream=True)).strip(), ANSWER)

    def test_stop_words_and_the_length(self):
        word = ANSWER.split()[1]
        result = self.generate(stop=[word], details=True)
        self.assertNotIn(word, result.generated_text)
        self.assertEqual(result.details.finish_reason, "stop_sequence")
        self.assertEqual(self.generate(max_new_tokens=4, details=True).details.finish_reason, "length")

    def test_several_sequences(self):
        result = self.generate(do_sample=True, temperature=2.0, best_of=3, seed=1, details=True)
        self.assertEqual(len(result.details.best_of_sequences), 2)

    def test_a_grammar(self):
        text = self.generate(grammar={"type": "regex", "value": "(yes|no)"})
        self.assertIn(text.strip(), ("yes", "no"))


if __name__ == "__main__":
    unittest.main()
