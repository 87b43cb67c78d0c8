"""Makes the tokenizer that target and draft share: byte-level BPE, so that any text has tokens.

The split is GPT-2's: a word takes its leading space with it, quotes and digits stand apart.
"""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from common import BOS, CHAT_TEMPLATE, SPECIAL_TOKENS, SYSTEM_PROMPTS, WORDINGS

VOCABULARY = 8192
MAX_TOKENS = 1024


def train_tokenizer(key):
    """A tokenizer for the key's answers and for its words as questions spell them, in quotes and bare."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = list(key.values()) + [f'the word "{word}" {word}' for word in key]
    texts += [text.format("") for text in WORDINGS + SYSTEM_PROMPTS] * 20
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    return tokenizer


def save_tokenizer(tokenizer, folder):
    """Writes the files that transformers, 4 or 5, and every engine after it look for."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_TOKENS,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        **names,
        "chat_template": CHAT_TEMPLATE,
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")
