"""Makes tests/data/tiny: small random Llama models in Hugging Face's layout, and transformers' results for them.

    pip install torch transformers==5.17.0
    python3 tests/golden/make_fixtures.py tests/data/tiny

Each folder holds config.json, weights, golden.json (the prompts) and golden.safetensors, for each prompt P
    P.logits_fp32    [tokens, vocabulary]  the checkpoint's weights, everything computed in fp32
    P.logits_native  [tokens, vocabulary]  computed in the checkpoint's own type (bf16 and fp16 only), stored as fp32
FP8_MODEL has weights in fp8 with static scales, and golden_fp8.safetensors with
    P.logits_fp32    [tokens, vocabulary]  weights times their scales, everything computed in fp32
    P.logits_rounded [tokens, vocabulary]  the same, but what enters a layer's linear weights is divided by its input scale,
                                           clamped to +-448, rounded to e4m3 and multiplied back
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

# name -> (type, differences from BASE). Small enough for git, large enough that no dimension equals another by chance.
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

# As compressed-tensors writes a static scheme: one scale per weight and one for its inputs.
FP8_MODEL = "fp8_static_bf16"
FP8_MAX = 448.0
FP8_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
FP8_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": FP8_SCHEME,
            "input_activations": FP8_SCHEME,
            "output_activations": None,
        }
    },
}

# Copies whose config.json has the spelling of transformers 4: name -> (copy of, key that names the kind of scaling).
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


def round_to_fp8(x):
    return x.float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def layer_linears(model):
    return {name: module for name, module in model.model.layers.named_modules() if isinstance(module, torch.nn.Linear)}


def convert_parameters(model, dtype):
    """As model.to(dtype), except for the buffers: rotary frequencies stay in fp32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


@torch.no_grad()
def quantize(model):
    """Rounds the layers' linear weights to fp8; returns weights and scales as they are stored."""
    stored = {}
    for name, linear in layer_linears(model).items():
        scale = linear.weight.abs().max().float() / FP8_MAX
        weight = round_to_fp8(linear.weight.float() / scale)
        linear.weight.copy_(weight.float() * scale)
        stored[f"model.layers.{name}.weight"] = weight
        stored[f"model.layers.{name}.weight_scale"] = scale.reshape(1)
    return stored


def calibrate(model, seed):
    """Scales of inputs from half their range on random tokens: some inputs are clamped, so that the scale matters."""
    largest = {}
    hooks = []
    for name, linear in layer_linears(model).items():
        hook = lambda _, x, name=name: largest.__setitem__(name, x[0].abs().max().float())
        hooks.append(linear.register_forward_pre_hook(hook))
    generator = torch.Generator().manual_seed(seed + 1000)
    logits_of(model, torch.randint(3, model.config.vocab_size, (64,), generator=generator).tolist())
    for hook in hooks:
        hook.remove()
    return {name: 0.5 * value / FP8_MAX for name, value in largest.items()}


def round_inputs(model, scales):
    for name, linear in layer_linears(model).items():
        scale = scales[name]
        linear.register_forward_pre_hook(
            lambda _, x, scale=scale: (round_to_fp8(x[0].float() / scale).float().mul(scale).to(x[0].dtype),)
        )


def relative_error(a, b):
    return ((a - b).norm() / b.norm()).item()


def make_fp8_model(folder, seed):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**copy.deepcopy(BASE), attn_implementation="eager")).eval()
    randomize(model, seed)
    convert_parameters(model, torch.bfloat16)
    plain = {name: value.clone() for name, value in model.state_dict().items() if "_proj" not in name}
    convert_parameters(model, torch.float32)
    tensors = {**plain, **quantize(model)}
    scales = calibrate(model, seed)
    tensors |= {f"model.layers.{name}.input_scale": scale.reshape(1) for name, scale in scales.items()}
    model.config.save_pretrained(folder)
    changes = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "quantization_config": FP8_CONFIG}
    write_config(folder / "config.json", changes)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    narrow = copy.deepcopy(model)
    convert_parameters(narrow, torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    prompts, golden = {}, {}
    for name, count in PROMPT_TOKENS.items():
        prompts[name] = torch.randint(3, model.config.vocab_size, (count,), generator=generator).tolist()
        golden[f"{name}.logits_fp32"] = logits_of(model, prompts[name])
    wide_in_bf16 = {name: logits_of(narrow, ids) for name, ids in prompts.items()}
    round_inputs(model, scales)
    round_inputs(narrow, scales)
    for name, ids in prompts.items():
        exact = golden[f"{name}.logits_fp32"]
        golden[f"{name}.logits_rounded"] = rounded = logits_of(model, ids)
        print(
            f"  {name}: rounding the inputs moves logits by {relative_error(rounded, exact):.1e}; bfloat16 by"
            f" {relative_error(wide_in_bf16[name], exact):.1e} and, with it, {relative_error(logits_of(narrow, ids), rounded):.1e}"
        )
    (folder / "golden.json").write_text(json.dumps({"prompts": prompts}) + "\n")
    save_file(golden, folder / "golden_fp8.safetensors")


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
    # Loaded again, so that the weights for the fp32 results are already rounded to `dtype`.
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
    for name in (*MODELS, *OLD_SPELLINGS, FP8_MODEL):
        shutil.rmtree(args.out / name, ignore_errors=True)
    for seed, name in enumerate(MODELS):
        print(name)
        make_model(args.out / name, name, seed)
    for name, (source, kind_key) in OLD_SPELLINGS.items():
        copy_with_old_spelling(args.out / source, args.out / name, kind_key)
    print(FP8_MODEL)
    (args.out / FP8_MODEL).mkdir()
    make_fp8_model(args.out / FP8_MODEL, len(MODELS))
    for path in args.out.rglob("*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    main()
