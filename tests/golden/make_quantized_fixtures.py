"""Makes tests/data/quantized: tiny Llama models packed by the libraries that define the formats, and their logits.

    pip install torch transformers compressed-tensors autoawq auto-gptq nvidia-modelopt
    python3 tests/golden/make_quantized_fixtures.py tests/data/quantized

Each folder holds config.json, weights, golden.json (a prompt) and golden.safetensors with

    short.logits_fp32 [tokens, vocabulary]  transformers' logits with the weights that the library itself unpacks, in fp32

Runs on a CPU in seconds; `seed` makes it repeatable for one version of torch.
"""

import argparse
import copy
import json
from pathlib import Path

import torch
from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.modules.linear.gemv import WQLinear_GEMV
from awq.utils.packing_utils import dequantize_gemm
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from modelopt.torch.export.quant_utils import pack_int4_in_uint8
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

GROUP = 32
MODEL = dict(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
)


def by_groups(weight, group):
    return weight.reshape(weight.shape[0], -1, group)


def integers(weight, bits, zero_points, group=GROUP):
    """Scales [rows, groups], zero points from 0, and the weight rounded to what they can express."""
    grouped = by_groups(weight, group)
    levels = 2**bits - 1
    if zero_points:
        low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
        scales = ((high - low) / levels).half().float()
        zeros = (-low / scales).round().clamp(1, levels)
    else:
        scales = (grouped.abs().amax(2) / (levels // 2)).half().float()
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    codes = ((grouped / scales[:, :, None]).round() + zeros[:, :, None]).clamp(0, levels)
    return scales, zeros, ((codes - zeros[:, :, None]) * scales[:, :, None]).reshape(weight.shape)


def linear_of(weight):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight.clone()
    return linear


def gptq(bits, zero_points, act_order):
    def pack(weight, generator):
        columns = weight.shape[1]
        groups = torch.arange(columns) // GROUP
        order = torch.randperm(columns, generator=generator) if act_order else torch.arange(columns)
        scales, zeros, rounded = integers(weight[:, order], bits, zero_points)
        exact = torch.empty_like(weight)
        exact[:, order] = rounded
        g_idx = torch.empty(columns, dtype=torch.int32)
        g_idx[order] = groups.int()
        layer = QuantLinear(bits, GROUP, columns, weight.shape[0], False, weight_dtype=torch.float32)
        layer.pack(linear_of(exact), scales.clone(), zeros.clone(), g_idx)
        unpacked = layer(torch.eye(columns)).T
        tensors = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
        return tensors | {"scales": layer.scales.half()}, unpacked

    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": not zero_points, "desc_act": act_order}
    return config, pack


def awq_gemm():
    def pack(weight, generator):
        scales, zeros, rounded = integers(weight, 4, True)
        layer = WQLinear_GEMM.from_linear(linear_of(rounded), 4, GROUP, False, scales.T.contiguous(), zeros.T.contiguous())
        tensors = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
        return tensors, dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, GROUP).T

    return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, pack


def awq_gemv():
    def pack(weight, generator):
        scales, zeros, rounded = integers(weight, 4, True)
        layer = WQLinear_GEMV.from_linear(linear_of(rounded), 4, GROUP, False, scales, zeros)
        return {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}, rounded

    return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemv"}, pack


def compressed(format, compressor, weights, scale_dtype, make_scales, inputs=None):
    """`make_scales`: of a weight, {"weight_scale": ..., other parameters}."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights), input_activations=inputs)

    def pack(weight, generator):
        parameters = make_scales(weight)
        stored = compressor.compress({"weight": weight, **parameters}, scheme)
        if issubclass(compressor, NVFP4PackedCompressor):
            return stored, unpack_fp4(stored, scheme.weights)
        wide = {name: value.float() if value.dtype == scale_dtype else value for name, value in stored.items()}
        return stored, compressor.decompress(wide, scheme)["weight"]

    config = {
        "quant_method": "compressed-tensors",
        "format": format,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
    }
    return config, pack


def unpack_fp4(stored, weights):
    """As the compressor does it, but in fp32 where that rounds to bf16."""
    packed = stored["weight_packed"]
    elements = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], dtype=torch.float32)
    scale, factor = stored["weight_scale"], stored.get("weight_global_scale")
    scale = decompress_mx_scale(scale) if scale.dtype == torch.uint8 else scale
    scale = scale.float()
    return dequantize(x_q=elements, scale=scale, args=weights, global_scale=factor, dtype=torch.float32)


def group_scales(bits, zero_points, group=GROUP):
    def make(weight):
        scales, zeros, _ = integers(weight, bits, zero_points, group or weight.shape[1])
        signed = (zeros - 2 ** (bits - 1)).to(torch.int8)
        return {"weight_scale": scales.half(), "weight_zero_point": signed}

    return make


def block_scales(weight):
    rows, columns = (-(-size // GROUP) for size in weight.shape)
    scales = torch.empty(rows, columns)
    for i in range(rows):
        for j in range(columns):
            block = weight[i * GROUP : (i + 1) * GROUP, j * GROUP : (j + 1) * GROUP]
            scales[i, j] = block.abs().max() / 448
    return {"weight_scale": scales.bfloat16()}


def fp4_scales(weight):
    factor = 448 * 6 / weight.abs().max()
    scales = (by_groups(weight, 16).abs().amax(2) / 6 * factor).to(torch.float8_e4m3fn)
    return {"weight_scale": scales.float(), "weight_global_scale": factor.reshape(1)}


def powers_of_two(weight):
    return {"weight_scale": 2 ** (by_groups(weight, 32).abs().amax(2).log2().floor() - 2)}


def modelopt_int4():
    def pack(weight, generator):
        factors = (torch.rand(weight.shape[1], generator=generator) + 0.5).half().float()
        scales, _, rounded = integers(weight / factors, 4, False)
        packed = pack_int4_in_uint8(rounded, scales, GROUP)
        return {"weight": packed, "weight_scale": scales, "pre_quant_scale": factors.half()}, rounded * factors

    return {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": GROUP, "pre_quant_scale": True}, pack


def modelopt_nvfp4():
    def pack(weight, generator):
        quantized, scales, factor = NVFP4QTensor.quantize(weight, 16)
        unpacked = quantized.dequantize(
            dtype=torch.float32, scale=scales, double_scale=factor, block_sizes={-1: 16}
        )
        tensors = {"weight": quantized._quantized_data, "weight_scale": scales, "weight_scale_2": factor}
        return tensors | {"input_scale": torch.tensor(0.01)}, unpacked

    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, pack


INT4 = dict(num_bits=4, type="int", strategy="group", group_size=GROUP)
INT8_INPUTS = QuantizationArgs(num_bits=8, type="int", strategy="token", dynamic=True)
FP4 = dict(num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn)
MXFP4 = dict(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)
FORMATS = {
    "gptq": lambda: gptq(4, False, False),
    "gptq_act_order": lambda: gptq(4, True, True),
    "gptq_8_bits": lambda: gptq(8, True, False),
    "awq_gemm": awq_gemm,
    "awq_gemv": awq_gemv,
    "packed_int4": lambda: compressed(
        "pack-quantized", PackedQuantizationCompressor, dict(INT4, symmetric=True), torch.half, group_scales(4, False)
    ),
    "packed_int4_zeros": lambda: compressed(
        "pack-quantized", PackedQuantizationCompressor, dict(INT4, symmetric=False), torch.half, group_scales(4, True)
    ),
    "packed_int8": lambda: compressed(
        "pack-quantized",
        PackedQuantizationCompressor,
        dict(num_bits=8, type="int", strategy="channel", symmetric=True),
        torch.half,
        group_scales(8, False, None),
    ),
    "int8": lambda: compressed(
        "int-quantized",
        NaiveQuantizationCompressor,
        dict(num_bits=8, type="int", strategy="channel", symmetric=True),
        torch.half,
        group_scales(8, False, None),
        INT8_INPUTS,
    ),
    "fp8_blocks": lambda: compressed(
        "float-quantized",
        NaiveQuantizationCompressor,
        dict(num_bits=8, type="float", strategy="block", block_structure=[GROUP, GROUP]),
        torch.bfloat16,
        block_scales,
    ),
    "nvfp4": lambda: compressed("nvfp4-pack-quantized", NVFP4PackedCompressor, FP4, torch.bfloat16, fp4_scales),
    "mxfp4": lambda: compressed("mxfp4-pack-quantized", MXFP4PackedCompressor, MXFP4, torch.bfloat16, powers_of_two),
    "modelopt_int4": modelopt_int4,
    "modelopt_nvfp4": modelopt_nvfp4,
}
# Weights with the same inputs have one order of them and one set of factors.
INPUTS = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 1, "gate_proj": 2, "up_proj": 2, "down_proj": 3}


@torch.inference_mode()
def make(name, folder, seed):
    torch.manual_seed(seed)
    config, pack = FORMATS[name]()
    model = LlamaForCausalLM(LlamaConfig(**copy.deepcopy(MODEL), attn_implementation="eager")).eval()
    for key, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape)
        plain = 1 + 0.2 * noise if "norm" in key else (0.5 if "embed" in key else parameter.shape[-1] ** -0.5) * noise
        parameter.data = plain.half().float()
    tensors = {key: value.half() for key, value in model.state_dict().items() if "_proj" not in key}
    for key, linear in model.model.layers.named_modules():
        if not isinstance(linear, torch.nn.Linear):
            continue
        generator = torch.Generator().manual_seed(seed + INPUTS[key.rpartition(".")[2]])
        stored, unpacked = pack(linear.weight.data, generator)
        assert unpacked.shape == linear.weight.shape, (key, unpacked.shape)
        error = ((unpacked - linear.weight).norm() / linear.weight.norm()).item()
        assert error < 0.2, (name, key, error)
        linear.weight.data = unpacked.float().contiguous()
        tensors |= {f"model.layers.{key}.{part}": value.contiguous() for part, value in stored.items()}
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    path = folder / "config.json"
    described = json.loads(path.read_text())
    described |= {"architectures": ["LlamaForCausalLM"], "dtype": "float16", "quantization_config": config}
    path.write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    prompt = torch.randint(3, MODEL["vocab_size"], (12,)).tolist()
    logits = model(torch.tensor([prompt]), use_cache=False).logits[0].float().contiguous()
    save_file({"short.logits_fp32": logits}, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps({"prompts": {"short": prompt}}) + "\n")
    print(f"{name}: rounding changes the last weight by {error:.1e}; logits spread {logits.std():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=FORMATS, action="append")
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()
    for name in options.only or FORMATS:
        make(name, options.folder / name, options.seed)


if __name__ == "__main__":
    main()
