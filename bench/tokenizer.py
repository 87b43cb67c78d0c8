#!/usr/bin/env python3
"""Writes a made-up tokenizer for a dummy model: every token is printable ASCII, as many words as the model has rows.

    python3 bench/tokenizer.py 128256 FOLDER
    tandem bench throughput --dummy bench/configs/llama-3.1-8b.json --tokenizer_dir FOLDER --grammar --input_len 128
"""

import json
import pathlib
import random
import sys

ASCII = [chr(code) for code in range(ord(" "), ord("~") + 1)]


def words(count):
    """The first `count` of: single characters, then words as byte-level vocabularies have them, most after a space."""
    rng = random.Random(1)
    syllables = [c + v + e for c in "bcdfghklmnprstvw" for v in "aeiou" for e in ("", "n", "r", "s", "t", "l")]
    seen = dict.fromkeys(ASCII)
    while len(seen) < count:
        word = "".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3, 3, 4))))
        word = rng.choice((word, word, word, word.capitalize(), word.upper(), word + rng.choice(",.:;()'\"=_-")))
        seen[rng.choice(("", " ", " ")) + word] = None
    return list(seen)


def main():
    count, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    # Byte-level vocabularies write a space as the character U+0120.
    vocab = {word.replace(" ", "\u0120"): token for token, word in enumerate(words(count))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level,
                 "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text("{}\n")


if __name__ == "__main__":
    main()
