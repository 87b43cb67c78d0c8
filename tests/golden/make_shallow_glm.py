#!/usr/bin/env python3
"""Makes shallower models of SOURCE's chatglm6b and glm10b, for make_family_fixtures.py to pack.

The folders of SOURCE hold whole tiny models with the logits of their authors' code. Here the same computation is written with NumPy, in
double precision: it must agree with those logits first, and then gives those of the first layers alone. OUT gets folders of the same
form. Needs numpy.

  make_shallow_glm.py SOURCE OUT
"""

import json
import math
import pathlib
import sys

import numpy

from make_family_fixtures import read, write

PROMPTS = ("p0", "p1", "p2", "p3", "p4")
LAYERS = {"chatglm6b": 2, "glm10b": 1}
# Learned positions that are kept, with those prompts of which all are.
MOST_POSITIONS = {"chatglm6b": 2048, "glm10b": 120}
# What the config of GLM-10B does not say: the first token of the output, and where it may stand, in the order of the search.
START = {"chatglm6b": 324, "glm10b": 305}
MASKS = {"chatglm6b": (321, 320), "glm10b": (306, 307)}


def norm(x, weights, name):
    centred = x - x.mean(-1, keepdims=True)
    return centred / numpy.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def gelu(x):
    return 0.5 * x * (1 + numpy.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turn(x, positions):
    """x: [heads, rows, dim]. The frequencies are rounded to fp16, as the authors' code has them."""
    dim = x.shape[-1]
    frequencies = (1 / 10000 ** (numpy.arange(0, dim, 2) / dim)).astype("f2").astype("f8")
    angle = positions[:, None] * frequencies
    low, high = x[..., : dim // 2], x[..., dim // 2 :]
    cos, sin = numpy.cos(angle), numpy.sin(angle)
    return numpy.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def split_qkv(qkv, heads, per_head):
    rows = len(qkv)
    if per_head:
        return qkv.reshape(rows, heads, 3, -1).transpose(2, 1, 0, 3)
    return qkv.reshape(rows, 3, heads, -1).transpose(1, 2, 0, 3)


def logits(name, config, weights, ids, num_layers):
    prefix = ids.index(START[name])
    mask = next(ids.index(token) for token in MASKS[name] if token in ids[:prefix])
    at = numpy.arange(len(ids))
    first = numpy.where(at < prefix, at, mask)
    second = numpy.where(at < prefix, 0, at - prefix + 1)
    is_chatglm = name == "chatglm6b"
    top = next(key for key in weights if key.endswith("word_embeddings.weight")).removesuffix("word_embeddings.weight")
    model = {key.removeprefix(top): value.astype("f8") for key, value in weights.items()}
    if not is_chatglm:
        model = {key.removeprefix("transformer."): value for key, value in model.items()}
    x = model["word_embeddings.weight"][ids]
    if not is_chatglm:
        x = x + model["position_embeddings.weight"][first] + model["block_position_embeddings.weight"][second]
    heads = config["num_attention_heads"]
    hidden_keys = (at[None, :] > at[:, None]) & (at[None, :] >= prefix)
    for i in range(num_layers):
        layer = f"layers.{i}."
        normed = norm(x, model, layer + "input_layernorm")
        q, k, v = split_qkv(linear(normed, model, layer + "attention.query_key_value"), heads, is_chatglm)
        if is_chatglm:
            half = q.shape[-1] // 2
            q, k = (numpy.concatenate([turn(y[..., :half], first), turn(y[..., half:], second)], -1) for y in (q, k))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores = numpy.where(hidden_keys, -numpy.inf, scores)
        shares = numpy.exp(scores - scores.max(-1, keepdims=True))
        attended = (shares / shares.sum(-1, keepdims=True)) @ v
        out = linear(attended.transpose(1, 0, 2).reshape(len(ids), -1), model, layer + "attention.dense")
        x = math.sqrt(56) * normed + out if is_chatglm else x + out
        normed = norm(x, model, layer + "post_attention_layernorm")
        activation = gelu_tanh if is_chatglm else gelu
        out = linear(activation(linear(normed, model, layer + "mlp.dense_h_to_4h")), model, layer + "mlp.dense_4h_to_h")
        x = math.sqrt(56) * normed + out if is_chatglm else x + out
    return norm(x, model, "final_layernorm") @ model["word_embeddings.weight"].T


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name, num_layers in LAYERS.items():
        config = json.loads((source / name / "config.json").read_text())
        weights, cases = read(source / name / "model.safetensors"), read(source / name / "cases.safetensors")
        kept = {key: ("F32", value) for key, value in weights.items() if ".layers." not in key or int(key.split(".layers.")[1].split(".")[0]) < num_layers}
        answers = {}
        for prompt in PROMPTS:
            ids = [int(token) for token in cases[f"{prompt}.ids"]]
            theirs, generated = cases[f"{prompt}.logits"], [int(token) for token in cases[f"{prompt}.generated"]]
            whole = logits(name, config, weights, ids + generated[:-1], config["num_layers"])[-len(theirs) :]
            difference = numpy.abs(whole - theirs).max()
            print(f"{name} {prompt}: differs from the authors' code by at most {difference:.1e}")
            if difference > 1e-4:
                raise SystemExit("not the authors' computation")
            if len(ids) + 3 > MOST_POSITIONS[name]:
                continue
            rows = []
            for _ in range(3):
                rows.append(logits(name, config, weights, ids, num_layers)[-1])
                ids.append(int(rows[-1].argmax()))
            answers[f"{prompt}.ids"] = ("I64", numpy.array(ids[:-3], "<i8"))
            answers[f"{prompt}.generated"] = ("I64", numpy.array(ids[-3:], "<i8"))
            answers[f"{prompt}.logits"] = ("F32", numpy.array(rows, "<f4"))
        (out / name).mkdir(parents=True, exist_ok=True)
        config["num_layers"] = num_layers
        config["max_sequence_length"] = min(config["max_sequence_length"], MOST_POSITIONS[name])
        for key, (dtype, value) in kept.items():
            if key.endswith("position_embeddings.weight"):
                kept[key] = (dtype, value[: MOST_POSITIONS[name] + 1])
        (out / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        write(out / name / "model.safetensors", kept)
        write(out / name / "cases.safetensors", answers)


if __name__ == "__main__":
    main()
