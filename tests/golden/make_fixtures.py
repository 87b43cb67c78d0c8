"""Makes tests/data/tiny: small random Llama models in Hugging Face's layout, and what transformers computes with them.

    pip install torch transformers==5.17.0
    python3 tests/golden/make_fixtures.py tests/data/tiny

Each folder holds config.json, weights, golden.json (the prompts) and golden.safetensors, for each prompt P
    P.logits_fp32    [tokens, vocabulary]  the checkpoint's weights, everything computed in fp32
    P.logits_native  [tokens, vocabulary]  computed in the checkpoint's own type (bf16 and fp16 only), stored as fp32
Runs on a CPU in seconds; `seed` makes it repeatable for one version of torch.
"""

import argparse
import copy
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT_TOKENS = {"short": 7, "long": 40}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

# name -> (type, what differs from BASE). Small enough for git, large enough that no dimension equals another by chance.
BASE = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    bos_token_id=1,
    eos_token_id=2,
)
MODELS = {
    "mha_fp32": (torch.float32, dict(num_key_value_heads=4, intermediate_size=48)),
    "gqa_bf16_llama3_tied": (torch.bfloat16, dict(rope_parameters=LLAMA3, tie_word_embeddings=True, vocab_size=199)),
    "bias_fp16": (torch.float16, dict(attention_bias=True, mlp_bias=True)),
    "linear_bf16_sharded": (
        torch.bfloat16,
        dict(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, num_attention_heads=8),
    ),
    "dynamic_fp32": (
        torch.float32,
        dict(
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
            max_position_embeddings=16,
            intermediate_size=64,
        ),
    ),
    "head_dim_bf16": (torch.bfloat16, dict(head_dim=32)),
}
SHARD_SIZE = {"linear_bf16_sharded": "48KB"}

# Copies whose config.json is spelled as transformers 4 did: name -> (copy of, key that names the kind of scaling).
OLD_SPELLINGS = {
    "gqa_bf16_llama3_tied_v4": ("gqa_bf16_llama3_tied", "rope_type"),
    "linear_bf16_sharded_v4": ("linear_bf16_sharded", "type"),
}


def randomize(model, seed):
    """Weights large enough that logits differ by several units and every layer, norm and bias matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_((0.5 if "embed" in name else 1 / parameter.shape[1] ** 0.5) * noise)


@torch.inference_mode()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float().contiguous()


def make_golden(model, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    prompts, tensors = {}, {}
    exact = copy.deepcopy(model).float()
    for name, count in PROMPT_TOKENS.items():
        ids = torch.randint(3, model.config.vocab_size, (count,), generator=generator).tolist()
        prompts[name] = ids
        tensors[f"{name}.logits_fp32"] = reference = logits_of(exact, ids)
        if dtype != torch.float32:
            tensors[f"{name}.logits_native"] = native = logits_of(model, ids)
            error = ((native - reference).norm() / reference.norm()).item()
            print(f"  {name}: relative error of transformers in {dtype}: {error:.1e}; spread {reference.std():.2f}")
    return prompts, tensors


def write_config(path, changes, removed=()):
    config = json.loads(path.read_text())
    config.update(changes)
    for key in removed:
        config.pop(key, None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make_model(folder, name, seed):
    dtype, differences = MODELS[name]
    torch.manual_seed(seed)
    config = LlamaConfig(**copy.deepcopy({**BASE, **differences}), attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    randomize(model, seed)
    model = model.to(dtype)
    model.save_pretrained(folder, max_shard_size=SHARD_SIZE.get(name, "10MB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_config(folder / "config.json", {"dtype": str(dtype).removeprefix("torch.")}, removed=["torch_dtype"])
    # Loaded again, so that rounding to `dtype` is in the weights that the fp32 figures are computed with.
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    prompts, tensors = make_golden(model, dtype, seed)
    (folder / "golden.json").write_text(json.dumps({"prompts": prompts}) + "\n")
    save_file(tensors, folder / "golden.safetensors")


def copy_with_old_spelling(source, folder, kind_key):
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    rope = dict(config["rope_parameters"])
    changes = {"torch_dtype": config["dtype"], "rope_theta": rope.pop("rope_theta"), "transformers_version": "4.46.0"}
    changes["rope_scaling"] = {kind_key: rope.pop("rope_type"), **rope}
    write_config(folder / "config.json", changes, removed=["dtype", "rope_parameters"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    for name in (*MODELS, *OLD_SPELLINGS):
        shutil.rmtree(args.out / name, ignore_errors=True)
    for seed, name in enumerate(MODELS):
        print(name)
        make_model(args.out / name, name, seed)
    for name, (source, kind_key) in OLD_SPELLINGS.items():
        copy_with_old_spelling(args.out / source, args.out / name, kind_key)
    for path in args.out.rglob("*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    main()
