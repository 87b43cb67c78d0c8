#!/usr/bin/env python3
"""Makes tiny DeepSeek models with their logits, for make_family_fixtures.py to pack.

The forward pass is the authors' written in numpy, in double precision: every head has its own keys and values, nothing is
cached or absorbed. It is first compared with logits of the authors' code, in the folders deepseek_v2 and deepseek_v3 of
ORACLES; then it writes OUT/NAME for each of MODELS: config.json and model.safetensors, whose weights come from a seeded
generator and are exact in bf16, and cases.safetensors with pN.ids, pN.generated and pN.logits: greedy, computed anew for
every token. Needs numpy.

  make_tiny_deepseek.py ORACLES OUT
"""

import json
import math
import pathlib
import sys

import numpy

from make_family_fixtures import read, write

VOCAB, STEPS, LENGTHS = 64, 3, (5, 33, 150)
# V2-Lite: queries without a latent of their own. Its groups are those of the large V2.
MODELS = {
    "deepseek_v2_lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_act": "silu",
        "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "kv_lora_rank": 20, "q_lora_rank": None, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 10, "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_intermediate_size": 8, "n_routed_experts": 6,
        "n_shared_experts": 2, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2, "topk_method": "group_limited_greedy",
        "scoring_func": "softmax", "norm_topk_prob": False, "routed_scaling_factor": 1.5, "max_position_embeddings": 2560,
        "rope_theta": 10000, "rms_norm_eps": 1e-06, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1,
        "rope_scaling": {"type": "yarn", "factor": 20, "original_max_position_embeddings": 128, "beta_fast": 32,
                         "beta_slow": 1, "mscale": 0.8, "mscale_all_dim": 0.707},
    },
}  # fmt: skip


def mscale(factor, scale):
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def silu(x):
    return x / (1.0 + numpy.exp(-x))


def softmax(x):
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    def __init__(self, config, weights):
        self.c = config
        self.w = {name: array.astype("f8") for name, array in weights.items()}

    def norm(self, x, name, epsilon=1e-6):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * self.w[name + ".weight"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T

    def angles(self, positions):
        """Cosines and sines, each pair's twice."""
        dim, theta, scaling = self.c["qk_rope_head_dim"], self.c["rope_theta"], self.c["rope_scaling"]
        factor, trained = scaling["factor"], scaling["original_max_position_embeddings"]
        plain = theta ** (-numpy.arange(0, dim, 2) / dim)

        def pair(turns):
            return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(pair(scaling["beta_fast"])), 0), min(math.ceil(pair(scaling["beta_slow"])), dim - 1)
        ramp = numpy.clip((numpy.arange(dim // 2) - low) / (high - low if high > low else 0.001), 0, 1)
        angle = positions[:, None] * (plain / factor * ramp + plain * (1 - ramp))[None]
        angle = numpy.concatenate([angle, angle], -1)
        size = mscale(factor, scaling["mscale"]) / mscale(factor, scaling["mscale_all_dim"])
        return numpy.cos(angle) * size, numpy.sin(angle) * size

    def rotate(self, x):
        """x: [rows, heads, dim], pairs are neighbours."""
        cos, sin = self.angles(numpy.arange(len(x)))
        x = numpy.concatenate([x[..., 0::2], x[..., 1::2]], -1)
        half = x.shape[-1] // 2
        return x * cos[:, None] + numpy.concatenate([-x[..., half:], x[..., :half]], -1) * sin[:, None]

    def attention(self, x, layer):
        c, p = self.c, f"model.layers.{layer}.self_attn."
        heads, nope, rope, value = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        rank, rows = c["kv_lora_rank"], len(x)
        if c["q_lora_rank"] is None:
            q = self.linear(x, p + "q_proj")
        else:
            q = self.linear(self.norm(self.linear(x, p + "q_a_proj"), p + "q_a_layernorm"), p + "q_b_proj")
        q = q.reshape(rows, heads, nope + rope)
        down = self.linear(x, p + "kv_a_proj_with_mqa")
        kv = self.linear(self.norm(down[:, :rank], p + "kv_a_layernorm"), p + "kv_b_proj").reshape(rows, heads, nope + value)
        shared = numpy.broadcast_to(self.rotate(down[:, None, rank:]), (rows, heads, rope))
        q = numpy.concatenate([q[..., :nope], self.rotate(q[..., nope:])], -1)
        k = numpy.concatenate([kv[..., :nope], shared], -1)
        scaling = c["rope_scaling"]
        scale = (nope + rope) ** -0.5 * mscale(scaling["factor"], scaling["mscale_all_dim"]) ** 2
        scores = numpy.einsum("qhd,khd->hqk", q, k) * scale
        scores = numpy.where(numpy.tril(numpy.ones((rows, rows), bool))[None], scores, -numpy.inf)
        out = numpy.einsum("hqk,khd->qhd", softmax(scores), kv[..., nope:])
        return self.linear(out.reshape(rows, heads * value), p + "o_proj")

    def mlp(self, x, name):
        return self.linear(silu(self.linear(x, name + "gate_proj")) * self.linear(x, name + "up_proj"), name + "down_proj")

    def choose(self, x, name):
        """Weights of all experts, 0 of those not chosen. [rows, experts]"""
        c, experts = self.c, self.c["n_routed_experts"]
        scores = self.linear(x, name + "gate")
        sigmoid = c["scoring_func"] == "sigmoid"
        scores = 1 / (1 + numpy.exp(-scores)) if sigmoid else softmax(scores)
        choice = scores + self.w[name + "gate.e_score_correction_bias"] if sigmoid else scores
        weights = numpy.zeros_like(scores)
        for row in range(len(x)):
            values = choice[row].copy()
            if c["topk_method"] != "greedy":
                groups = values.reshape(c["n_group"], -1)
                value = numpy.sort(groups, -1)[:, -2:].sum(-1) if sigmoid else groups.max(-1)
                kept = numpy.argsort(-value, kind="stable")[: c["topk_group"]]
                mask = numpy.isin(numpy.arange(experts) // groups.shape[1], kept)
                values = numpy.where(mask, values, 0.0)
            chosen = numpy.argsort(-values, kind="stable")[: c["num_experts_per_tok"]]
            weight = scores[row, chosen]
            renormed = c["norm_topk_prob"] and c["num_experts_per_tok"] > 1
            if renormed:
                weight = weight / weight.sum()
            if sigmoid or not renormed:
                weight = weight * c["routed_scaling_factor"]
            weights[row, chosen] = weight
        return weights

    def logits(self, tokens):
        x = self.w["model.embed_tokens.weight"][tokens]
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = x + self.attention(self.norm(x, p + "input_layernorm"), layer)
            h = self.norm(x, p + "post_attention_layernorm")
            if layer < self.c["first_k_dense_replace"]:
                x = x + self.mlp(h, p + "mlp.")
                continue
            weights, out = self.choose(h, p + "mlp."), self.mlp(h, p + "mlp.shared_experts.")
            for expert in range(self.c["n_routed_experts"]):
                out = out + weights[:, expert : expert + 1] * self.mlp(h, p + f"mlp.experts.{expert}.")
            x = x + out
        return self.linear(self.norm(x, "model.norm"), "lm_head")


def check(folder):
    model = Model(json.loads((folder / "config.json").read_text()), read(folder / "model.safetensors"))
    cases, worst = read(folder / "cases.safetensors"), 0.0
    for name in [name[: -len(".ids")] for name in cases if name.endswith(".ids")]:
        ids, generated, expected = cases[name + ".ids"], cases[name + ".generated"], cases[name + ".logits"]
        tokens = numpy.concatenate([ids, generated[:-1]])
        worst = max(worst, numpy.abs(model.logits(tokens)[len(ids) - 1 :] - expected).max() / expected.std())
    print(f"{folder.name}: largest difference from the authors' code {worst:.1e} of the logits' deviation")
    if worst > 1e-4:
        raise SystemExit("this is not the authors' model")


def random_weights(config, seed):
    """Near one in norms, of a size that gives logits of a few units."""
    c, random = config, numpy.random.default_rng(seed)
    heads, head = c["num_attention_heads"], c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    hidden, rank = c["hidden_size"], c["kv_lora_rank"]
    weights = {}

    def add(name, *shape):
        noise = random.standard_normal(shape)
        value = 1 + 0.1 * noise if len(shape) == 1 else noise * (0.35 if "embed" in name else 1.6 / shape[1] ** 0.5)
        bits = value.astype("<f4").view("<u4")
        weights[name + ".weight"] = (((bits + 0x8000) >> 16) << 16).astype("<u4").view("<f4")

    def add_mlp(name, neurons):
        add(name + "gate_proj", neurons, hidden)
        add(name + "up_proj", neurons, hidden)
        add(name + "down_proj", hidden, neurons)

    add("model.embed_tokens", c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        add(p + "input_layernorm", hidden)
        add(p + "self_attn.q_proj", heads * head, hidden)
        add(p + "self_attn.kv_a_proj_with_mqa", rank + c["qk_rope_head_dim"], hidden)
        add(p + "self_attn.kv_a_layernorm", rank)
        add(p + "self_attn.kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), rank)
        add(p + "self_attn.o_proj", hidden, heads * c["v_head_dim"])
        add(p + "post_attention_layernorm", hidden)
        if layer < c["first_k_dense_replace"]:
            add_mlp(p + "mlp.", c["intermediate_size"])
            continue
        add(p + "mlp.gate", c["n_routed_experts"], hidden)
        for expert in range(c["n_routed_experts"]):
            add_mlp(p + f"mlp.experts.{expert}.", c["moe_intermediate_size"])
        add_mlp(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])
    add("model.norm", hidden)
    add("lm_head", c["vocab_size"], hidden)
    return weights


def make(name, out):
    out.mkdir(parents=True, exist_ok=True)
    config = MODELS[name]
    # Of the first seeds the one whose routers choose clearly, so that 16 bits choose the same experts.
    weights = random_weights(config, 9)
    model, random, cases = Model(config, weights), numpy.random.default_rng(1), {}
    for number, length in enumerate(LENGTHS, 1):
        tokens = list(random.integers(0, VOCAB, length))
        rows = []
        for _ in range(STEPS):
            rows.append(model.logits(numpy.array(tokens))[-1])
            tokens.append(int(rows[-1].argmax()))
        cases[f"p{number}.ids"] = ("I64", numpy.array(tokens[:length], "<i8"))
        cases[f"p{number}.generated"] = ("I64", numpy.array(tokens[length:], "<i8"))
        cases[f"p{number}.logits"] = ("F32", numpy.array(rows, "<f4"))
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write(out / "model.safetensors", {name: ("F32", array) for name, array in weights.items()})
    write(out / "cases.safetensors", cases)


def main():
    oracles, out = map(pathlib.Path, sys.argv[1:])
    for name in ("deepseek_v2", "deepseek_v3"):
        check(oracles / name)
    for name in MODELS:
        make(name, out / name)


main()
