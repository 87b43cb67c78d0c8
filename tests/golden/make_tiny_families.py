#!/usr/bin/env python3
"""Makes tiny models of families that transformers computes, with its logits, for make_family_fixtures.py to pack.

Writes for each NAME the folder OUT/NAME: config.json and model.safetensors, whose weights come from a seeded generator and are exact in
bf16, and cases.safetensors with pN.ids, pN.generated and pN.logits: greedy, computed anew for every token, in fp32. Needs torch and
transformers (4.37.2 made the fixtures, 5.23.0 those of OLMo).

  make_tiny_families.py OUT NAME...
"""

import json
import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.numpy import save_file

VOCAB, STEPS = 160, 3
COMMON = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}
# Heads whose number is no power of two where the family has slopes for them; prompts shorter than the learned positions.
FAMILIES = {
    "bloom": ("BloomForCausalLM", {"hidden_size": 36, "n_layer": 2, "n_head": 6, "seq_length": 2048}),
    "mpt": ("MptForCausalLM", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}),
    "opt": (
        "OPTForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 96, "max_position_embeddings": 200,
         "word_embed_proj_dim": 32},
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96, "rotary_pct": 0.25,
         "rotary_emb_base": 10000, "max_position_embeddings": 256},
    ),
    "gpt_neox_sequential": (
        "GPTNeoXForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96, "rotary_pct": 1.0,
         "use_parallel_residual": False, "max_position_embeddings": 256},
    ),
    "olmo2": (
        "Olmo2ForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
         "max_position_embeddings": 256, "pad_token_id": 0},
    ),
    # Layers without a window are scaled, from a context shorter than the longest prompt.
    "olmo3": (
        "Olmo3ForCausalLM",
        {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
         "max_position_embeddings": 256, "pad_token_id": 0, "sliding_window": 23,
         "layer_types": ["sliding_attention", "full_attention"],
         "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
}


def fill(model, seed):
    """Random weights, near one in norms, of a size that gives logits of a few units."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                value = noise * 0.1 + (1.0 if "norm" in name or "ln_" in name else 0.0) * name.endswith("weight")
            elif "embed" in name or "wte" in name:
                value = noise * 0.35
            else:
                value = noise * (1.6 / weight.shape[1] ** 0.5)
            weight.copy_(value.to(torch.bfloat16).float())


def make(name, out):
    architecture, sizes = FAMILIES[name]
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**COMMON, **sizes)
    config.architectures, config.torch_dtype = [architecture], "float32"
    torch.manual_seed(0)
    model = model_class(config).float().eval()
    fill(model, sum(name.encode()))
    rng, cases = numpy.random.default_rng(7), {}
    for index, length in enumerate((1, 5, 33, 150)):
        ids = rng.integers(3, VOCAB, length).tolist()
        rows, tokens = [], list(ids)
        for _ in range(STEPS):
            with torch.no_grad():
                rows.append(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy())
            tokens.append(int(rows[-1].argmax()))
        cases[f"p{index}.ids"] = numpy.array(ids, dtype=numpy.int64)
        cases[f"p{index}.generated"] = numpy.array(tokens[length:], dtype=numpy.int64)
        cases[f"p{index}.logits"] = numpy.stack(rows)
    out.mkdir(parents=True, exist_ok=True)
    tied = {weight.data_ptr(): key for key, weight in reversed(list(model.state_dict().items()))}
    weights = {key: weight.numpy() for key, weight in model.state_dict().items() if tied[weight.data_ptr()] == key}
    save_file({key: numpy.ascontiguousarray(value) for key, value in weights.items() if value.dtype == numpy.float32},
              out / "model.safetensors")
    save_file(cases, out / "cases.safetensors")
    (out / "config.json").write_text(json.dumps(config.to_diff_dict(), indent=1) + "\n")
    deviation = numpy.concatenate([value for key, value in cases.items() if key.endswith(".logits")]).std()
    print(f"{name}: deviation of logits {deviation:.2f}, {len(weights)} tensors")


def main():
    for name in sys.argv[2:] or FAMILIES:
        make(name, pathlib.Path(sys.argv[1]) / name)


main()
