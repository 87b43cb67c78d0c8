#!/usr/bin/env python3
"""Makes small tokenizer folders of every kind that is read, and the ids of their reference libraries.

  python3 -m venv /tmp/v && /tmp/v/bin/pip install transformers==4.46.3 sentencepiece==0.2.3 tiktoken==0.14.0
  /tmp/v/bin/python tests/golden/make_tokenizer_fixtures.py

tests/data/tokenizers/folders/lines.jsonl: texts of many scripts. Each folder beside it has the files of a model's
repository; cases.json: texts with ids, the decoded text, and conversations with the ids that the repository's own
code would make of them; ids.txt: for each line of lines.jsonl FNV-1a of its ids (little endian, 32 bits each).

The references are sentencepiece, tiktoken and the slow classes of transformers. For the classes whose code is in the
model's repository this script puts the same library calls together as that code does.
"""

import base64
import importlib.util
import io
import json
import pathlib
import random
import re
import shutil
import tempfile
import unicodedata

import sentencepiece
import tiktoken
import transformers
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

DATA = pathlib.Path(__file__).parent.parent / "data" / "tokenizers"
HERE = DATA / "folders"

spec = importlib.util.spec_from_file_location("make", DATA / "make.py")
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)

SCRIPTS = [
    [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F)],
    [(0x391, 0x3C9)],
    [(0x410, 0x44F)],
    [(0x5D0, 0x5EA)],
    [(0x621, 0x652)],
    [(0x905, 0x94D)],
    [(0xB85, 0xBCD)],
    [(0xE01, 0xE4E)],
    [(0x10D0, 0x10FF)],
    [(0x1200, 0x135A)],
    [(0xAC00, 0xD7A3)],
    [(0x1100, 0x11FF)],
    [(0x3041, 0x30FF)],
    [(0x4E00, 0x9FFF)],
    [(0x20000, 0x2A6DF)],
    [(0x1F300, 0x1F64F)],
    [(0x1D400, 0x1D7FF)],
    [(0xFF01, 0xFF9F)],
    [(0xF900, 0xFA6D), (0xFB00, 0xFB06), (0x3300, 0x33FF)],
    [(0x30, 0x39)],
    [(0x660, 0x669), (0x966, 0x96F), (0xB2, 0xB3), (0x2460, 0x2473), (0x2150, 0x2188)],
    [(0x300, 0x36F)],
    [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E), (0x2010, 0x2027)],
]
SPACES = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200d", " " * 9]
ODD = ["▁", "▁▁", "<0x0A>", "\ufeff", "\x7f", "e\u0301", "👩‍👩‍👧‍👦", "\U0010fffd", "'s", "sop", "İ", "ﬁ"]


def make_lines():
    """Words of the corpus, of scripts at random, and both."""
    r = random.Random(2026)
    words = [word for text in make.CORPUS for word in text.split(" ")]
    lines = list(make.CORPUS[:9])
    while len(lines) < 1000:
        few = r.sample(SCRIPTS, r.randint(1, 3))
        line = ""
        for _ in range(r.randint(1, 9)):
            kind = r.random()
            if kind < 0.07:
                line += r.choice(ODD)
            elif kind < 0.5 and len(lines) % 3:
                line += r.choice(words)
            else:
                blocks = r.choice(few)
                for _ in range(r.randint(1, 5)):
                    line += chr(r.randint(*r.choice(blocks)))
            if r.random() < 0.7:
                line += r.choice(SPACES)
        if not re.search(r"</?s>", line):
            lines.append(line)
    return lines


LINES = make_lines()
TEXTS = make.TEXTS


def train(corpus=None, **options):
    """The bytes of a SentencePiece model."""
    result = io.BytesIO()
    text = make.CORPUS + LINES[9::40] if corpus is None else corpus
    defaults = dict(vocab_size=700, character_coverage=0.98, hard_vocab_limit=False, minloglevel=2, num_threads=1)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=result, **{**defaults, **options}
    )
    proto = pb.ModelProto.FromString(result.getvalue())
    proto.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of this run
    return proto.SerializeToString()


def small_rules():
    """Normalization rules of every form, instead of Unicode's 240 KB: characters that change, join, part and go."""
    rules = [(chr(0xFF00 + i), chr(0x20 + i)) for i in range(1, 95)]
    rules += [("\u3000", " "), ("\t", " "), ("\u00a0", " "), ("\ufeff", ""), ("\u200d", ""), ("ﬁ", "fi")]
    rules += [("e\u0301", "é"), ("İ", "i̇"), ("\u3306", "  kai ri "), ("...", "…")]
    path = pathlib.Path(tempfile.mkdtemp()) / "rules.tsv"
    code = lambda text: " ".join(f"{ord(char):X}" for char in text)
    path.write_text("".join(f"{code(a)}\t{code(b)}\n" for a, b in rules))
    return str(path)


RULES = small_rules()
LLAMA = dict(
    model_type="bpe",
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    split_digits=True,
)


class SentencePiece:
    """What the slow classes of transformers do: special tokens are cut out, the rest goes to the library."""

    def __init__(self, model, specials, *, first_id=0, before=(), after=(), prepare=lambda text: text, appended=()):
        self.model = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = len(self.model)
        self.first_id = first_id
        self.appended = {name: self.size + i for i, name in enumerate(appended)}
        self.specials = {name: self.id(name) for name in specials}
        self.before = [self.id(name) for name in before]
        self.after = [self.id(name) for name in after]
        self.prepare = prepare
        self.whitespace = {}

    def id(self, name):
        return self.appended.get(name, self.model.piece_to_id(name) + self.first_id)

    def plain(self, text):
        return [i + self.first_id for i in self.model.encode(self.prepare(text))]

    def encode(self, text, special=False):
        ids = []
        names = sorted(self.specials, key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, names)) + ")", text) if names else [text]
        for part in parts:
            ids += [self.specials[part]] if part in self.specials else self.plain(part)
        return self.before + ids + self.after if special else ids

    def decode(self, ids):
        ids = [i - self.first_id for i in ids if i not in self.specials.values()]
        ids = [i for i in ids if 0 <= i < self.size]
        text = self.model.decode(ids)
        for name, whitespace in self.whitespace.items():
            text = text.replace(name, whitespace)
        return text


class Ranks:
    def __init__(self, ranks, pattern, specials, *, first_id=0, is_nfc=False, before=()):
        self.encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        self.specials = specials
        self.first_id = first_id
        self.is_nfc = is_nfc
        self.before = [specials[name] for name in before]

    def plain(self, text):
        text = unicodedata.normalize("NFC", text) if self.is_nfc else text
        return [i + self.first_id for i in self.encoding.encode(text)]

    def encode(self, text, special=False):
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, self.specials)) + ")", text):
            ids += [self.specials[part]] if part in self.specials else self.plain(part)
        return self.before + ids if special else ids

    def decode(self, ids):
        ids = [i - self.first_id for i in ids if i not in self.specials.values()]
        return self.encoding.decode(ids)


class Slow:
    """A slow class of transformers."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.before, self.after = [], []

    def encode(self, text, special=False):
        ids = self.tokenizer.encode(text, add_special_tokens=special)
        return self.before + ids + self.after if special else ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def hashed(ids):
    value = 0x811C9DC5
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def dump(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write(name, reference, files, chats=()):
    """`files`: bytes, text or JSON by file name. `chats`: conversations with the ids of the repository's code."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, content in files.items():
        if isinstance(content, bytes):
            (folder / file).write_bytes(content)
        elif isinstance(content, str):
            (folder / file).write_text(content, encoding="utf-8")
        else:
            dump(folder / file, content)
    if reference is None:
        reference = slow_class(folder)
    cases = []
    for text in TEXTS:
        ids = reference.encode(text, True)
        plain = reference.encode(text)
        cases.append({"text": text, "ids": ids, "plain_ids": plain, "decoded": reference.decode(ids)})
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    chats = [{"messages": messages, "ids": ids} for messages, ids in chats]
    chats = ",\n".join(json.dumps(chat, ensure_ascii=True) for chat in chats)
    text = f'{{"texts": [\n{lines}\n],\n"chats": [\n{chats}\n]}}\n'
    (folder / "cases.json").write_text(text, encoding="utf-8")
    hashes = [hashed(reference.encode(line)) for line in LINES]
    (folder / "ids.txt").write_text("\n".join(hashes) + "\n")


def slow_class(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return Slow(getattr(transformers, config["tokenizer_class"]).from_pretrained(folder))


# --- Conversations -------------------------------------------------------------------------------------------------

QUESTION = "What does tandem mean?"
CONVERSATION = [
    {"role": "user", "content": "你好"},
    {"role": "assistant", "content": "Hello, how are you?"},
    {"role": "user", "content": "It is a bicycle, you said.\nWhy?"},
]
SYSTEM = {"role": "system", "content": "Say what a word means."}


def conversations(build, *, system=True):
    lists = [[{"role": "user", "content": QUESTION}], CONVERSATION]
    if system:
        lists.append([SYSTEM] + CONVERSATION)
    return [(messages, build(messages)) for messages in lists]


def rounds(messages):
    """(question, answer) pairs, the last without an answer."""
    users = [m["content"] for m in messages if m["role"] == "user"]
    answers = [m["content"] for m in messages if m["role"] == "assistant"]
    return list(zip(users, answers)), users[-1]


# --- SentencePiece -------------------------------------------------------------------------------------------------


def llama_files(model, **config):
    return {
        "tokenizer.model": model,
        "tokenizer_config.json": {
            "tokenizer_class": "LlamaTokenizer",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            **config,
        },
    }


CONTROLS = ["<unk>", "<s>", "</s>"]


def sentencepiece_folders():
    llama = train(**LLAMA)
    bos = dict(before=["<s>"])
    write("llama", SentencePiece(llama, CONTROLS, **bos), llama_files(llama))
    # Only a whole text begins with a space.
    write("llama_not_legacy", None, llama_files(llama, legacy=False, add_bos_token=True, add_eos_token=True))
    extended = SentencePiece(llama, CONTROLS + ["<|user|>"], appended=["<|user|>", "<pad>"], **bos)
    extended.specials["<pad>"] = extended.id("<pad>")
    files = llama_files(llama, pad_token="<pad>", additional_special_tokens=["<|user|>"])
    size = extended.size
    write("llama_added", extended, files | {"added_tokens.json": {"<|user|>": size, "<pad>": size + 1}})
    gemma = train(
        **LLAMA | dict(add_dummy_prefix=False),
        user_defined_symbols=["<mask>", "\n\n", "▁▁", "▁▁▁", "\t", "<table>", "ba", "bad"],
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
    )
    controls = CONTROLS + ["<start_of_turn>", "<end_of_turn>"]
    write("gemma", SentencePiece(gemma, controls, **bos), llama_files(gemma, tokenizer_class="GemmaTokenizer"))
    plain = {"tokenizer_config.json": {}}
    rules = train(model_type="bpe", normalization_rule_tsv=RULES)
    write("bpe_rules", SentencePiece(rules, CONTROLS, **bos), {"tokenizer.model": rules} | plain)
    unigram = train(model_type="unigram", normalization_rule_name="nmt_nfkc_cf")
    write("unigram", SentencePiece(unigram, CONTROLS, **bos), {"tokenizer.model": unigram} | plain)
    unigram = train(
        model_type="unigram",
        byte_fallback=True,
        normalization_rule_tsv=RULES,
        user_defined_symbols=["<mask>", "tandem", "ba", "bad"],
    )
    write("unigram_bytes", SentencePiece(unigram, CONTROLS, **bos), {"tokenizer.model": unigram} | plain)
    suffix = train(**LLAMA, treat_whitespace_as_suffix=True)
    write("bpe_suffix", SentencePiece(suffix, CONTROLS, **bos), {"tokenizer.model": suffix} | plain)
    merged = merge_vocabularies(llama)
    write("merged", SentencePiece(merged, CONTROLS, **bos), llama_files(merged))


def merge_vocabularies(model):
    """As Chinese LLaMAs were made: pieces of another model appended with one score; here some are unused too."""
    proto = pb.ModelProto.FromString(model)
    known = {piece.piece for piece in proto.pieces}
    words = {word for text in make.CORPUS for word in re.findall(r"\w{2,6}", text)}
    words |= {"▁" + word for word in words} | {"aaa", "aa", "aaaa", "abab", "bab"}
    for i, word in enumerate(sorted(words - known)):
        kind = pb.ModelProto.SentencePiece.UNUSED if i % 7 == 3 else pb.ModelProto.SentencePiece.NORMAL
        proto.pieces.add(piece=word, score=0.0 if i % 2 else -3.5, type=kind)
    return proto.SerializeToString()


def chatglm():
    blanks = [f"<|blank_{i}|>" for i in range(2, 81)]
    special = ["[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>"]
    model = train(
        model_type="unigram",
        byte_fallback=True,
        normalization_rule_tsv=RULES,
        remove_extra_whitespaces=False,
        vocab_size=900,
        user_defined_symbols=["<n>"] + special + ["<|tab|>"] + blanks,
    )

    def prepare(text):
        text = text.replace("\n", "<n>").replace("\t", "<|tab|>")
        for i in range(80, 1, -1):
            text = text.replace(" " * i, f"<|blank_{i}|>")
        return text

    names = CONTROLS + ["[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"]
    for name, first_id, config in [
        ("chatglm", 0, {"num_image_tokens": 0}),
        ("chatglm_images", 20000, {}),
    ]:
        reference = SentencePiece(model, names, first_id=first_id, after=["[gMASK]", "<sop>"], prepare=prepare)
        reference.whitespace = {"<n>": "\n", "<|tab|>": "\t"} | {f"<|blank_{i}|>": " " * i for i in range(2, 81)}

        def build(messages, reference=reference):
            history, question = rounds(messages)
            prompt = "".join(f"[Round {i}]\n问：{q}\n答：{a}\n" for i, (q, a) in enumerate(history))
            prompt = prompt + f"[Round {len(history)}]\n问：{question}\n答：" if history else question
            return reference.encode(prompt, True)

        files = {
            "ice_text.model": model,
            "config.json": {"model_type": "chatglm", "position_encoding_2d": True},
            "tokenizer_config.json": {
                "tokenizer_class": "ChatGLMTokenizer",
                "bos_token": "<sop>",
                "eos_token": "<eop>",
                "mask_token": "[MASK]",
                "gmask_token": "[gMASK]",
                "unk_token": "<unk>",
                **config,
            },
        }
        write(name, reference, files, conversations(build, system=False))


def chatglm2_and_3():
    model = train(**LLAMA)
    commands = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"]
    roles = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
    for name, appended in [("chatglm2", commands), ("chatglm3", commands + roles)]:
        # Neither is a special token of a text in the repository's code; those that no text would contain are here.
        specials = CONTROLS + [token for token in appended if not token.isalpha()]
        reference = SentencePiece(model, specials, before=["[gMASK]", "sop"], appended=appended)

        def build2(messages, reference=reference):
            history, question = rounds(messages)
            prompt = "".join(f"[Round {i}]\n\n问：{q}\n\n答：{a}\n\n" for i, (q, a) in enumerate(history, 1))
            prompt += f"[Round {len(history) + 1}]\n\n问：{question}\n\n答："
            return reference.before + reference.plain(prompt)

        def build3(messages, reference=reference):
            ids = list(reference.before)
            for message in messages:
                ids += [reference.id(f"<|{message['role']}|>")]
                ids += reference.plain("\n") + reference.plain(message["content"])
            return ids + [reference.id("<|assistant|>")]

        files = {
            "tokenizer.model": model,
            "config.json": {
                "model_type": "chatglm",
                "_name_or_path": f"THUDM/{name}-6b",
                "padded_vocab_size": 65024,
                "eos_token_id": 2,
                "pad_token_id": 0,
            },
            "tokenizer_config.json": {"tokenizer_class": "ChatGLMTokenizer", "remove_space": False},
        }
        is_2 = name == "chatglm2"
        write(name, reference, files, conversations(build2 if is_2 else build3, system=not is_2))


def baichuan():
    for name, rows, prefix, first, ends_answers in [
        ("baichuan", 64000, True, 102, True),
        ("baichuan2", 125696, False, 106, False),
    ]:
        user, assistant = f"<reserved_{first}>", f"<reserved_{first + 1}>"
        reserved = [f"<reserved_{i}>" for i in range(first - 2, first + 3)]
        model = train(**LLAMA | dict(add_dummy_prefix=prefix), user_defined_symbols=reserved)
        reference = SentencePiece(model, CONTROLS + [user, assistant])

        def build(messages, reference=reference, ends_answers=ends_answers, user=user, assistant=assistant):
            ids = []
            for message in messages:
                role = {"user": user, "assistant": assistant}.get(message["role"])
                ids += ([reference.id(role)] if role else []) + reference.plain(message["content"])
                ids += [2] if role == assistant and ends_answers else []
            return ids + [reference.id(assistant)]

        files = llama_files(model, tokenizer_class="BaichuanTokenizer", add_bos_token=False, add_eos_token=False)
        files["config.json"] = {"model_type": "baichuan", "vocab_size": rows}
        files["generation_config.json"] = {"eos_token_id": 2, "pad_token_id": 0}
        write(name, reference, files, conversations(build))


def internlm():
    model = train(**LLAMA, user_defined_symbols=["<|User|>", "<|Bot|>", "<|System|>", "<eoh>", "<eoa>"])
    reference = SentencePiece(model, CONTROLS + ["<eoh>", "<eoa>"], before=["<s>"])

    def build(messages):
        prompt = ""
        for message in messages:
            role = {"user": "<|User|>", "assistant": "<|Bot|>", "system": "<|System|>"}[message["role"]]
            prompt += f"{role}:{message['content']}" + ("<eoa>\n" if role == "<|Bot|>" else "\n")
        return reference.encode(prompt + "<|Bot|>:", True)

    files = llama_files(model, tokenizer_class="InternLMTokenizer")
    files["config.json"] = {"model_type": "internlm"}
    write("internlm", reference, files, conversations(build))


def internlm2():
    """Pieces that are unused in the model have other names in the folder."""
    names = [f"[UNUSED_TOKEN_{i}]" for i in range(141, 147)]
    model = train(**LLAMA | dict(add_dummy_prefix=False), user_defined_symbols=names)
    added = ["<|plugin|>", "<|interpreter|>", "<|action_end|>", "<|action_start|>", "<|im_end|>", "<|im_start|>"]
    reference = SentencePiece(model, CONTROLS, before=["<s>"])
    reference.specials |= {name: reference.id(old) for name, old in zip(added, names)}
    decoder = {
        str(i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "special": True}
        for name, i in reference.specials.items()
    }
    files = llama_files(
        model,
        tokenizer_class="InternLM2Tokenizer",
        added_tokens_decoder=decoder,
        chat_template="{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'"
        " + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\n' }}{% endif %}",
    )

    def build(messages):
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return reference.encode(text + "<|im_start|>assistant\n", True)

    write("internlm2", reference, files, conversations(build))


# --- Byte-level BPE ------------------------------------------------------------------------------------------------


def byte_level(split, size=800):
    """The tokens of a byte-level BPE in the order of their merges, and the merges."""
    tokenizer = Tokenizer(BPE())
    pieces = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)]
    if split is not None:
        pieces.insert(0, pre_tokenizers.Split(make.Regex(split), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(make.CORPUS + LINES[9::40], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    vocabulary = sorted(model["vocab"], key=model["vocab"].get)
    return vocabulary, merges


CHARS = {char: byte for byte, char in transformers.models.gpt2.tokenization_gpt2.bytes_to_unicode().items()}


def ranks_of(split):
    """Ranks without their merges, and a few tokens that no merge makes or that merge in two ways."""
    vocabulary, _ = byte_level(split)
    tokens = [bytes(CHARS[char] for char in token) for token in vocabulary]
    for extra in ["aa", "aaa", "aaaa", "abab", "bab", "tandem", " tandem", "你好", "zqxzq"]:
        if extra.encode() not in tokens:
            tokens.append(extra.encode())
    return {token: rank for rank, token in enumerate(tokens)}


def rank_file(ranks):
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())


GLM4_PATTERN = make.LLAMA3_SPLIT
QWEN_PATTERN = make.LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen():
    ranks = ranks_of(QWEN_PATTERN)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]
    specials = {name: len(ranks) + i for i, name in enumerate(names)}
    reference = Ranks(ranks, QWEN_PATTERN, specials, is_nfc=True)
    start, end = specials["<|im_start|>"], specials["<|im_end|>"]

    def build(messages):
        if messages[0]["role"] != "system":
            messages = [{"role": "system", "content": "You are a helpful assistant."}] + messages
        ids = []
        for message in messages:
            ids += [start] + reference.plain(message["role"]) + reference.plain("\n")
            ids += reference.plain(message["content"]) + [end] + reference.plain("\n")
        return ids + [start] + reference.plain("assistant") + reference.plain("\n")

    files = {
        "qwen.tiktoken": rank_file(ranks),
        "config.json": {"model_type": "qwen"},
        "tokenizer_config.json": {"tokenizer_class": "QWenTokenizer"},
        "generation_config.json": {"chat_format": "chatml", "eos_token_id": specials["<|endoftext|>"]},
    }
    write("qwen", reference, files, conversations(build))


def glm4():
    ranks = ranks_of(GLM4_PATTERN)
    names = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"]
    names += ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
    specials = {name: len(ranks) + i for i, name in enumerate(names)}
    reference = Ranks(ranks, GLM4_PATTERN, specials, before=["[gMASK]", "<sop>"])

    def build(messages):
        ids = list(reference.before)
        for message in messages:
            ids += [specials[f"<|{message['role']}|>"]] + reference.plain("\n") + reference.plain(message["content"])
        return ids + [specials["<|assistant|>"]]

    decoder = {str(i): {"content": name, "special": True} for name, i in specials.items()}
    files = {
        "tokenizer.model": rank_file(ranks),
        "config.json": {"model_type": "chatglm", "padded_vocab_size": 151552},
        "tokenizer_config.json": {
            "tokenizer_class": "ChatGLM4Tokenizer",
            "added_tokens_decoder": decoder,
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
        },
    }
    write("glm4", reference, files, conversations(build))


def tekken():
    ranks = ranks_of(TEKKEN_PATTERN)
    size = len(ranks) - 9
    named = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    special_count = 20
    specials = {name: i for i, name in enumerate(named)}
    specials |= {f"<SPECIAL_{i}>": i for i in range(len(named), special_count)}
    kept = {token: rank for token, rank in ranks.items() if rank < size}
    reference = Ranks(kept, TEKKEN_PATTERN, specials, first_id=special_count, before=["<s>"])
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in ranks.items()
    ]
    json_file = {
        "config": {
            "pattern": TEKKEN_PATTERN,
            "num_vocab_tokens": len(ranks),
            "default_vocab_size": size + special_count,
            "default_num_special_tokens": special_count,
            "version": "v11",
        },
        "vocab": vocab,
        "special_tokens": [{"rank": i, "token_str": name, "is_control": True} for name, i in list(specials.items())[:5]],
    }
    write("tekken", reference, {"tekken.json": json.dumps(json_file) + "\n"})


def gpt2():
    for name, tokenizer_class, split in [("gpt2", "GPT2Tokenizer", None), ("qwen2", "Qwen2Tokenizer", QWEN_PATTERN)]:
        vocabulary, merges = byte_level(split)
        vocabulary.append("<|endoftext|>")
        files = {
            "vocab.json": json.dumps({token: i for i, token in enumerate(vocabulary)}) + "\n",
            "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n",
            "tokenizer_config.json": {"tokenizer_class": tokenizer_class, "unk_token": "<|endoftext|>"},
        }
        write(name, None, files)


def glm_10b():
    """GPT-2's tokens, with tokens for the blank that is filled."""
    vocabulary, merges = byte_level(None)
    vocabulary.append("<|endoftext|>")
    added = ["<|startofpiece|>", "<|endofpiece|>", "[CLS]", "[MASK]", "[gMASK]", "[sMASK]"]
    ids = {name: len(vocabulary) + i for i, name in enumerate(added)}
    files = {
        "vocab.json": json.dumps({token: i for i, token in enumerate(vocabulary)}) + "\n",
        "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n",
        "added_tokens.json": ids,
        "tokenizer_config.json": {
            "tokenizer_class": "GLMGPT2Tokenizer",
            "eos_token": "<|endoftext|>",
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
            "additional_special_tokens": ["<|startofpiece|>", "<|endofpiece|>", "[gMASK]", "[sMASK]"],
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        for file in ["vocab.json", "merges.txt"]:
            (pathlib.Path(folder) / file).write_text(files[file], encoding="utf-8")
        reference = Slow(transformers.GPT2Tokenizer.from_pretrained(folder))
    reference.tokenizer.add_special_tokens({"additional_special_tokens": added})
    assert reference.tokenizer.get_added_vocab().items() >= ids.items()
    reference.before = [ids["[CLS]"]]
    reference.after = [len(vocabulary) - 1, ids["<|startofpiece|>"]]
    write("glm_10b", reference, files)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in LINES)
    (HERE / "lines.jsonl").write_text(text, encoding="utf-8")
    sentencepiece_folders()
    chatglm()
    chatglm2_and_3()
    baichuan()
    internlm()
    internlm2()
    qwen()
    glm4()
    tekken()
    gpt2()
    glm_10b()
