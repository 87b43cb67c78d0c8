#!/usr/bin/env python3
"""Packs tiny models with the logits of their authors' own code into tests/data/families.

Each folder of SOURCE holds config.json, model.safetensors (values that bf16 holds exactly), cases.safetensors with
pN.ids, pN.generated and pN.logits, and perhaps other answers of the same code (README.json says which). Here weights become
bf16 (those that are quantized stay as they are), and a case is the prompt with what was generated after it. With --cut-vocabulary only the tokens that the cases or
the config name are kept, under new numbers, so that the folder is smaller. Needs numpy.

  make_family_fixtures.py [--cut-vocabulary] SOURCE OUT NAME...
"""

import json
import pathlib
import re
import struct
import sys

import numpy

DTYPES = {"F32": "<f4", "I32": "<i4", "I64": "<i8", "BF16": "<u2", "U8": "u1"}

# Where the code answers in several ways, the one that an engine in fp32 should give.
ANSWERS = {"falcon_rw": "logits_alibi_fp32", "rw7b": "logits_cos_fp32", "rw40b": "logits_cos_fp32", "qwen1_ntk": "logits_cached"}
# Where the base of the rotation depends on the length: only the row after the prompt is defined.
ONE_ROW = ("internlm_dynamic", "internlm2_dynamic")
# Keys that a person gives as options, because the config does not tell.
OPTIONS = {
    "glm10b": {"sop_token_id": 305, "mask_token_id": 306, "gmask_token_id": 307},
    "baichuan7b": {"baichuan_model_version": "v1_7b"},
    "baichuan13b": {"baichuan_model_version": "v1_13b"},
    "baichuan2_7b": {"baichuan_model_version": "v2_7b"},
    "baichuan2_13b": {"baichuan_model_version": "v2_13b"},
}
PROMPTS = ("p1", "p2", "p3", "p4")  # 5, 33, 150 tokens and one about as long as the window


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        if info["dtype"] not in DTYPES:
            continue  # masks
        begin, end = info["data_offsets"]
        raw = numpy.frombuffer(data[8 + length + begin : 8 + length + end], dtype=DTYPES[info["dtype"]])
        tensors[name] = raw.reshape(info["shape"])
    return tensors


def write(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, (dtype, array) in tensors.items():
        blob = numpy.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def packed_weight(array):
    """Bytes are quantized weights and their scales."""
    return ("U8", array) if array.dtype == numpy.uint8 else ("BF16", to_bf16(array))


def to_bf16(array):
    bits = array.astype("<f4").view("<u4")
    if (bits & 0xFFFF).any():
        raise SystemExit("a weight that bf16 does not hold")
    return (bits >> 16).astype("<u2")


def read_cases(source):
    """Tokens and logits of each prompt."""
    cases, answer = read(source / "cases.safetensors"), ANSWERS.get(source.name, "logits")
    packed = {}
    for prompt in PROMPTS:
        if f"{prompt}.ids" not in cases:
            continue
        ids = cases[f"{prompt}.ids"].astype("<i4")
        generated = cases.get(f"{prompt}.{answer.replace('logits', 'generated')}", cases[f"{prompt}.generated"]).astype("<i4")
        rows = cases.get(f"{prompt}.{answer}", cases[f"{prompt}.logits"])[: 1 if source.name in ONE_ROW else 3]
        packed[prompt] = (numpy.concatenate([ids, generated[: len(rows) - 1]]), rows)
    return packed


def token_ids(config):
    """The objects and keys of a config that name tokens, with the tokens."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from token_ids(value)
        elif key.endswith("_token_id") and value is not None:
            yield config, key, value if isinstance(value, list) else [value]


def cut_vocabulary(config, weights, cases):
    owner = config.get("text_config", config)
    key = "padded_vocab_size" if "padded_vocab_size" in owner else "vocab_size"
    size = owner[key]
    named = [token for _, _, tokens in token_ids(config) for token in tokens if 0 <= token < size]
    kept = numpy.unique(numpy.concatenate([tokens for tokens, _ in cases.values()] + [named]).astype("i4"))
    number = {int(token): i for i, token in enumerate(kept)}
    for holder, name, tokens in list(token_ids(config)):
        numbers = [number[token] for token in tokens if token in number]
        holder[name] = numbers if isinstance(holder[name], list) else numbers[0] if numbers else None
    owner[key] = len(kept)
    for name, array in weights.items():
        if re.search(r"embed_tokens|word_embeddings|tok_embeddings|wte|lm_head|output_layer|^output\b", name) and array.shape[0] == size:
            weights[name] = array[kept]
    for prompt, (tokens, rows) in cases.items():
        cases[prompt] = (numpy.array([number[int(token)] for token in tokens], "<i4"), rows[:, kept])


def pack(source, out, cut):
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text()) | OPTIONS.get(source.name, {})
    weights, cases = {}, read_cases(source)
    for name, array in read(source / "model.safetensors").items():
        if name.endswith(("inv_freq", "masked_bias")) or (name.endswith(".attn.bias") and array.ndim == 4):
            continue  # buffers, not weights
        weights[name] = array
    if cut:
        cut_vocabulary(config, weights, cases)
    write(out / "model.safetensors", {name: packed_weight(array) for name, array in weights.items()})
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    packed = {}
    for prompt, (tokens, rows) in cases.items():
        packed[f"{prompt}.tokens"] = ("I32", tokens)
        packed[f"{prompt}.logits"] = ("F32", rows)
    write(out / "cases.safetensors", packed)


def main():
    arguments = sys.argv[1:]
    cut = arguments[0] == "--cut-vocabulary"
    source, out, *names = arguments[cut:]
    for name in names:
        pack(pathlib.Path(source) / name, pathlib.Path(out) / name, cut)


if __name__ == "__main__":
    main()
