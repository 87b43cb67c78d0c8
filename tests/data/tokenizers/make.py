#!/usr/bin/env python3
"""Makes the small tokenizers of the tests and the reference library's results for them.

  python3 -m venv /tmp/v && /tmp/v/bin/pip install tokenizers==0.23.3
  /tmp/v/bin/python tests/data/tokenizers/make.py

Each folder gets tokenizer.json, tokenizer_config.json and cases.json: texts with the ids and the
decoded text of the reference (the PyPI package, whose regex engine is another than ours).
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

HERE = pathlib.Path(__file__).parent

CORPUS = [
    "The quick brown fox jumps over the lazy dog. A dictionary says what a word means.",
    "What does tandem mean? A bicycle with two sets of pedals and two seats; one behind the other.",
    "def main():\n    for i in range(10):\n        print(i, 'hello world')\n",
    "It's what they've said: we'll see, you're right, I'm not, he'd go.",
    "Größe, naïve, déjà vu, señor, Ærø, smörgåsbord, crème brûlée.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "今日は良い天気ですね。明日も晴れるでしょう。你好,世界。",
    "In 2024 there were 1234567 numbers, 3.14159 and 1,000,000.",
    "stop word stopping words badger bad badge batter better",
] * 4

TEXTS = [
    "",
    "Hello world",
    " Hello  world ",
    "   leading and trailing   ",
    "The quick brown fox jumps over the lazy dog.",
    "It's what THEY'VE said; we'LL see I'm.",
    "line one\nline two\r\n\r\n  line three\n\n\n",
    "\t\ttabs\u00a0nbsp\u3000wide\u2028sep",
    "1234567 12 3.5 ½ Ⅷ ٣٤",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 é e\u0301",
    "今日は良い天気ですね。漢字かな交じり文",
    "Съешь же ещё этих мягких французских булок",
    "\u200b\ufeff zero widths \u0000 nul \x7f del",
    "▁literal mark▁▁ and <0x0A> text",
    "a" * 300,
    " " * 50 + "x",
    "^^^^^^!!!!!!??",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010fffd",
    "<|eot|>mid<|eot|> </s> text <s>",
]

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level():
    tokenizer = Tokenizer(BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=640,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=["<|begin|>", "<|end|>", "<|eot|>"],
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content | trim }}"
        "<|eot|>{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
    }
    generation = {"bos_token_id": 0, "eos_token_id": [1, 2], "pad_token_id": 1}
    return tokenizer, config, generation


def byte_level_gpt2():
    """ByteLevel's built-in split, with its prefix space."""
    tokenizer, config, generation = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    return tokenizer, config, generation


def metaspace_bytes():
    """As Llama 2's: byte fallback, a word mark added in front, one space stripped again."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    specials = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trainer = BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=specials + byte_tokens,
        limit_alphabet=80,
        max_token_length=8,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Byte tokens are ordinary tokens: only these three tokens are special.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in specials]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": {"content": "<s>"},
        "eos_token": {"content": "</s>"},
        "unk_token": {"content": "<unk>"},
        "pad_token": None,
    }
    return tokenizer, config, {"eos_token_id": 2}


def metaspace_decoder():
    """The newer layout: Metaspace as pre-tokenizer and decoder, no normalizer."""
    tokenizer, config, generation = metaspace_bytes()
    data = json.loads(tokenizer.to_str())
    data["normalizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
    )
    return tokenizer, config, generation


def metaspace_kept():
    """As Gemma's: no word mark is added in front, so no space is stripped."""
    tokenizer, config, generation = metaspace_bytes()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer, config, generation


def word_piece():
    """As BERT's, for the language models derived from it."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = WordPieceTrainer(
        vocab_size=600, show_progress=False, limit_alphabet=120, special_tokens=specials
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]"))]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
    }
    return tokenizer, config, {"eos_token_id": tokenizer.token_to_id("[SEP]")}


def write(name, tokenizer, config, generation):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)

    def dump(file, value):
        text = json.dumps(value, ensure_ascii=False, indent=1)
        (folder / file).write_text(text + "\n", encoding="utf-8")

    dump("tokenizer_config.json", config)
    dump("generation_config.json", generation)
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=True).ids
        cases.append(
            {
                "text": text,
                "ids": ids,
                "plain_ids": tokenizer.encode(text, add_special_tokens=False).ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                "decoded_with_special": tokenizer.decode(ids, skip_special_tokens=False),
            }
        )
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    (folder / "cases.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    write("byte_level", *byte_level())
    write("byte_level_gpt2", *byte_level_gpt2())
    write("metaspace_bytes", *metaspace_bytes())
    write("metaspace_decoder", *metaspace_decoder())
    write("metaspace_kept", *metaspace_kept())
    write("word_piece", *word_piece())
