"""Makes tests/data/checkpoints: tiny Llama models as TensorRT-LLM's tools write their checkpoints, and their logits.

    pip install numpy
    python3 tests/golden/make_checkpoint_fixtures.py tests/data/checkpoints

The packing follows the tools' own code: quantize.py (modelopt's export) and convert_checkpoint.py of versions 0.9 to 0.17, which
leaves integer weights in the order that the kernels of one GPU read. Each folder holds config.json, rank files, golden.json (a
prompt) and golden.safetensors with

    short.logits_fp32 [tokens, vocabulary]  the model with the weights that are stored, computed in fp32
"""

import argparse
import json
from pathlib import Path

import numpy as np

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD, VOCABULARY = 64, 128, 4, 2, 16, 64
GROUP = 32
EPSILON = 1e-5
QKV, DENSE, FC, GATE, PROJ = "attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"
ROWS = {QKV: (HEADS + 2 * KV_HEADS) * HEAD, DENSE: HIDDEN, FC: INTERMEDIATE, GATE: INTERMEDIATE, PROJ: HIDDEN}
COLUMNS = {QKV: HIDDEN, DENSE: HEADS * HEAD, FC: HIDDEN, GATE: HIDDEN, PROJ: INTERMEDIATE}


class Fp8:
    """e4m3 bytes, which numpy has no type for."""

    def __init__(self, bytes_):
        self.bytes = bytes_.astype(np.uint8)


def e4m3_values():
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, (codes & 7) / 8
    magnitude = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


E4M3 = e4m3_values()


def to_e4m3(values):
    finite = np.array([code for code in range(256) if code & 127 != 127], np.uint8)
    order = finite[np.argsort(E4M3[finite], kind="stable")]
    table = E4M3[order]
    at = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    nearer = np.abs(table[at - 1] - values) <= np.abs(table[at] - values)
    return order[np.where(nearer, at - 1, at)]


def write_safetensors(path, tensors):
    names = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}
    header, data = {}, b""
    for name, tensor in sorted(tensors.items()):
        fp8 = isinstance(tensor, Fp8)
        array = np.ascontiguousarray(tensor.bytes if fp8 else tensor)
        raw = array.tobytes()
        dtype = "F8_E4M3" if fp8 else names[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


# The order of kernels. `codes`: signed integers [inputs, outputs].


def pack_int4(codes):
    codes = codes.astype(np.int16) & 15
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def unpack_int4(packed):
    codes = np.empty((packed.shape[0], packed.shape[1] * 2), np.uint8)
    codes[:, ::2], codes[:, 1::2] = packed & 15, packed >> 4
    return codes


def kernel_order(codes, bits, sm):
    """Bytes [inputs, outputs * bits / 8], which are really those of another order."""
    inputs, outputs = codes.shape
    shape = (inputs, outputs * bits // 8)
    if sm == 80:
        rows = {
            8: [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15],
            4: [8 * (k % 8 // 2) + 2 * (k // 8) + k % 2 for k in range(32)],
        }[bits]
        codes = codes.reshape(-1, len(rows), outputs)[:, rows].reshape(inputs, outputs)
    columns = np.ascontiguousarray(codes.T)
    packed = pack_int4(columns) if bits == 4 else columns.astype(np.int8).view(np.uint8)
    if sm == 80:
        together = 8 // bits * 2
        words = packed.view(np.uint32)
        tile = 64 * bits // 32
        words = words.reshape(outputs // together, together, -1, tile).transpose(0, 2, 1, 3)
        packed = np.ascontiguousarray(words).view(np.uint8).reshape(outputs, -1)
        if bits == 4:
            elements = (unpack_int4(packed) + 8) & 15
            elements = elements.reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(outputs, -1)
            packed = pack_int4(elements)
        else:
            packed = (packed + 128).astype(np.uint8).reshape(-1, 4)[:, [0, 2, 1, 3]]
    return np.ascontiguousarray(packed).reshape(shape).view(np.int8)


# How weights are stored. A format takes a weight [outputs, inputs] and gives the tensors by suffix, other tensors of the layer,
# and what the product computes with.


def rounded_for_kernels(bits, sm):
    def pack(name, weight):
        scales = (np.abs(weight).max(1) / 2 ** (bits - 1)).astype(np.float16)
        codes = np.clip(np.round(weight / scales[:, None].astype(np.float32)), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        tensors = {"weight": kernel_order(codes.T.astype(np.int8), bits, sm), "per_channel_scale": scales}
        return tensors, {}, codes * scales[:, None].astype(np.float32)

    return pack


def rounded(bits, sm):
    """In the order of kernels where the rank's columns allow it."""

    def pack(name, weight):
        if weight.shape[1] % 64 == 0:
            return rounded_for_kernels(bits, sm)(name, weight)
        scales = (np.abs(weight).max(1) / (2 ** (bits - 1) - 1)).astype(np.float32)
        codes = np.round(weight / scales[:, None]).astype(np.int8)
        stored = codes if bits == 8 else ((codes[::2] & 15) | (codes[1::2] & 15) << 4).astype(np.uint8).view(np.int8)
        return {"weight": stored, "weights_scaling_factor": scales}, {}, codes * scales[:, None]

    return pack


def gptq(bits, sm):
    def pack(name, weight):
        group = 64
        grouped = weight.reshape(weight.shape[0], -1, group)
        levels = 2**bits - 1
        low, high = grouped.min(2), grouped.max(2)
        scales = ((high - low) / levels).astype(np.float16).astype(np.float32)
        zeros = np.clip(np.round(-low / scales), 1, levels)
        codes = np.clip(np.round(grouped / scales[:, :, None]) + zeros[:, :, None], 0, levels)
        middle = 2 ** (bits - 1)
        signed = (codes - middle).reshape(weight.shape).astype(np.int8)
        tensors = {
            "weight": kernel_order(signed.T, bits, sm).view(np.float16),
            "weights_scaling_factor": scales.T.astype(np.float16),
            "zero": ((middle - zeros) * scales).T.astype(np.float16),
        }
        return tensors, {}, ((codes - zeros[:, :, None]) * scales[:, :, None]).reshape(weight.shape)

    return pack


def awq(inputs_in_fp8):
    def pack(name, weight):
        factors = np.ones(weight.shape[1], np.float32)
        tensors = {}
        if name in (DENSE, PROJ):
            factors = (0.5 + np.arange(weight.shape[1]) % 7 / 4).astype(np.float16).astype(np.float32)
            tensors["prequant_scaling_factor"] = factors.astype(np.float16)
        grouped = (weight / factors).reshape(weight.shape[0], -1, GROUP)
        scales = (np.abs(grouped).max(2) / 7).astype(np.float16).astype(np.float32)
        codes = np.clip(np.round(grouped / scales[:, :, None]), -8, 7).astype(np.int8)
        values = (codes * scales[:, :, None]).reshape(weight.shape) * factors
        codes = codes.reshape(weight.shape) & 15
        tensors["weight"] = (codes[::2] | codes[1::2] << 4).astype(np.uint8).view(np.int8)
        tensors["weights_scaling_factor"] = scales.astype(np.float16)
        if inputs_in_fp8:
            tensors["activation_scaling_factor"] = np.array([0.05], np.float32)
            tensors["weights_scaling_factor_2"] = np.array([np.abs(weight).max() / 448], np.float32)
        return tensors, {}, values

    return pack


def smooth_quant_modelopt(name, weight):
    tensors, _, values = smooth_quant(True, True)(name, weight)
    out = {"weight": tensors["weight"], "weights_scaling_factor": tensors["per_channel_scale"].reshape(-1)}
    out["activation_scaling_factor"] = np.array([0.04], np.float32)
    if "smoother" in tensors:
        out["prequant_scaling_factor"] = 1 / tensors["smoother"].reshape(-1)
    return out, {}, values


INPUT_MULTIPLIERS = {
    QKV: "input_layernorm.scale_to_int",
    DENSE: "attention.quantization_scaling_factor",
    FC: "post_layernorm.scale_to_int",
    GATE: "post_layernorm.scale_to_int",
    PROJ: "mlp.quantization_scaling_factor",
}


def smooth_quant(per_channel, per_token):
    def pack(name, weight):
        smoother = np.ones(weight.shape[1], np.float32)
        tensors = {}
        if name in (DENSE, PROJ):
            smoother = (0.5 + np.arange(weight.shape[1]) % 5 / 4).astype(np.float32)
            tensors["smoother"] = smoother.reshape(1, -1)
        smoothed = weight * smoother
        largest = np.abs(smoothed).max(1)
        if not per_channel:
            parts = np.split(largest, [HEADS * HEAD, (HEADS + KV_HEADS) * HEAD]) if name == QKV else [largest]
            largest = np.concatenate([np.full_like(part, part.max()) for part in parts])
        scales = (largest / 127).astype(np.float32)
        codes = np.clip(np.round(smoothed / scales[:, None]), -127, 127)
        tensors["weight"] = codes.astype(np.int8)
        input_scale, output_scale = np.float32(0.04), np.float32(0.125)
        stored = scales if per_token else scales * input_scale / output_scale
        of_rows = per_channel or name == QKV
        tensors["per_channel_scale"] = stored.reshape(1, -1) if of_rows else stored[:1].reshape(1, 1)
        if not per_token:
            tensors["act_scale"] = np.array([[output_scale]], np.float32)
        multiplier = np.float32(1) if per_token else 1 / input_scale
        others = {INPUT_MULTIPLIERS[name]: np.array([multiplier], np.float32)}
        return tensors, others, codes.astype(np.float32) * scales[:, None] / smoother

    return pack


def fp8(name, weight):
    scale = np.float32(np.abs(weight).max() / 448)
    codes = to_e4m3(weight / scale)
    tensors = {
        "weight": Fp8(codes),
        "weights_scaling_factor": np.array([scale]),
        "activation_scaling_factor": np.array([0.02], np.float32),
    }
    return tensors, {}, E4M3[codes] * scale


def fp8_rows(name, weight):
    """As Meta's recipe has it: attention is left as it is."""
    if name in (QKV, DENSE):
        return plain(name, weight)
    scales = (np.abs(weight).max(1) / 448).astype(np.float32)
    codes = to_e4m3(weight / scales[:, None])
    return {"weight": Fp8(codes), "per_channel_scale": scales}, {}, E4M3[codes] * scales[:, None]


def plain(name, weight):
    return {"weight": weight.astype(np.float16)}, {}, weight.astype(np.float16).astype(np.float32)


GROUPS = {"group_size": GROUP, "has_zero_point": False, "pre_quant_scale": True}
GPTQ = {"group_size": 64, "has_zero_point": True, "pre_quant_scale": False}
FORMATS = {
    "w8a16_sm80": ("W8A16", rounded_for_kernels(8, 80), {}),
    "w8a16_sm90": ("W8A16", rounded_for_kernels(8, 90), {}),
    "w8a16_not_rounded": ("W8A16", plain, {}),
    "w4a16_sm80": ("W4A16", rounded_for_kernels(4, 80), {}),
    "w4a16_sm90": ("W4A16", rounded_for_kernels(4, 90), {}),
    "w8a16_tp2": ("W8A16", rounded(8, 80), {}),
    "w4a16_tp2": ("W4A16", rounded(4, 90), {}),
    "gptq_sm80": ("W4A16_GPTQ", gptq(4, 80), GPTQ),
    "gptq_sm90": ("W4A16_GPTQ", gptq(4, 90), GPTQ),
    "gptq_int8": ("W8A16_GPTQ", gptq(8, 80), GPTQ),
    "awq": ("W4A16_AWQ", awq(False), GROUPS),
    "awq_pp2_tp2": ("W4A16_AWQ", awq(False), GROUPS),
    "w4a8_awq": ("W4A8_AWQ", awq(True), GROUPS),
    "sq_modelopt": ("W8A8_SQ_PER_CHANNEL", smooth_quant_modelopt, {"pre_quant_scale": True}),
    "sq_channel_token": ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", smooth_quant(True, True), {}),
    "sq_channel_tensor": ("W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", smooth_quant(True, False), {}),
    "sq_tensor_token": ("W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", smooth_quant(False, True), {}),
    "sq_tensor": ("W8A8_SQ_PER_TENSOR_PLUGIN", smooth_quant(False, False), {}),
    "fp8_pp3": ("FP8", fp8, {"kv_cache_quant_algo": "FP8"}),
    "fp8_rows": ("FP8_ROWWISE", fp8_rows, {}),
}
PP = {"awq_pp2_tp2": 2, "fp8_pp3": 3}
TP = {"awq_pp2_tp2": 2, "w8a16_tp2": 2, "w4a16_tp2": 2}
# As convert_checkpoint.py does it; each rank's part has scales of its own.
SPLIT_BEFORE_ROUNDING = ("w8a16_tp2", "w4a16_tp2")
LAYERS = {"awq_pp2_tp2": 2, "fp8_pp3": 4}


def split(name, suffix, value, tp, rank):
    """A rank's part of a tensor of one of modelopt's formats, which are packed along the rows alone."""
    if tp == 1 or suffix.endswith("_2") or suffix == "activation_scaling_factor":
        return value
    if name in (DENSE, PROJ):
        return np.split(value, tp, axis=-1)[rank]
    if suffix == "prequant_scaling_factor":
        return value
    parts = [value]
    if name == QKV:
        halves = 2 if suffix == "weight" else 1
        parts = np.split(value, [HEADS * HEAD // halves, (HEADS + KV_HEADS) * HEAD // halves])
    return np.concatenate([np.split(part, tp)[rank] for part in parts])


def joined(name, parts):
    """The whole of the ranks' parts of a weight."""
    if name != QKV:
        return np.concatenate(parts, axis=1 if name in (DENSE, PROJ) else 0)
    tp = len(parts)
    of_ranks = [np.split(part, [HEADS * HEAD // tp, (HEADS + KV_HEADS) * HEAD // tp]) for part in parts]
    return np.concatenate([part for of_rank in zip(*of_ranks) for part in of_rank])


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight


def rotate(x):
    """[tokens, heads, HEAD]"""
    frequencies = 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    angles = np.arange(x.shape[0])[:, None] * frequencies
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def attention(x):
    tokens = x.shape[0]
    q, k, v = np.split(x.reshape(tokens, -1, HEAD), [HEADS, HEADS + KV_HEADS], axis=1)
    q, k = rotate(q), rotate(k)
    k, v = (np.repeat(part, HEADS // KV_HEADS, axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD)
    scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(tokens, -1)


def logits_of(prompt, embedding, layers, final_norm, head):
    x = embedding[prompt].astype(np.float64)
    for layer in layers:
        x = x + attention(rms_norm(x, layer["input_layernorm"]) @ layer[QKV].T) @ layer[DENSE].T
        y = rms_norm(x, layer["post_layernorm"])
        gate = y @ layer[FC].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ layer[GATE].T)) @ layer[PROJ].T
    return rms_norm(x, final_norm) @ head.T


def make(name, folder, seed):
    algo, pack, keys = FORMATS[name]
    tp, pp, num_layers = TP.get(name, 1), PP.get(name, 1), LAYERS.get(name, 1)
    random = np.random.default_rng(seed)

    def half(*shape, size=1.0):
        return (random.standard_normal(shape) * size).astype(np.float16)

    embedding, head = half(VOCABULARY, HIDDEN, size=0.5), half(VOCABULARY, HIDDEN, size=HIDDEN**-0.5)
    final_norm = (1 + half(HIDDEN, size=0.2)).astype(np.float16)
    files = [{} for _ in range(tp * pp)]
    layers = []
    stages = np.array_split(np.arange(num_layers), pp)
    for stage, in_stage in enumerate(stages):
        for local, _ in enumerate(in_stage):
            prefix = f"transformer.layers.{local}."
            layer = {norm: (1 + half(HIDDEN, size=0.2)).astype(np.float16) for norm in ("input_layernorm", "post_layernorm")}
            stored = {f"{prefix}{norm}.weight": weight for norm, weight in layer.items()}
            if keys.get("kv_cache_quant_algo"):
                stored[f"{prefix}attention.kv_cache_scaling_factor"] = np.array([0.5], np.float32)
            split_up = {}
            for product in (QKV, DENSE, FC, GATE, PROJ):
                weight = half(ROWS[product], COLUMNS[product], size=COLUMNS[product] ** -0.5).astype(np.float32)
                if name in SPLIT_BEFORE_ROUNDING:
                    packed = [pack(product, split(product, "", weight, tp, rank)) for rank in range(tp)]
                    layer[product] = joined(product, [values for _, _, values in packed])
                    for rank, (tensors, _, _) in enumerate(packed):
                        files[stage * tp + rank] |= {f"{prefix}{product}.{s}": value for s, value in tensors.items()}
                    tensors, others = {}, {}
                else:
                    tensors, others, layer[product] = pack(product, weight)
                error = np.linalg.norm(layer[product] - weight) / np.linalg.norm(weight)
                assert error < 0.25, (name, product, error)
                stored |= {prefix + other: value for other, value in others.items()}
                split_up |= {(product, suffix): value for suffix, value in tensors.items()}
            for rank in range(tp):
                parts = {f"{prefix}{p}.{s}": split(p, s, value, tp, rank) for (p, s), value in split_up.items()}
                files[stage * tp + rank] |= stored | parts
            layers.append({key: value.astype(np.float64) for key, value in layer.items()})
    for rank in range(tp):
        files[rank]["transformer.vocab_embedding.weight"] = embedding
        files[-tp + rank]["transformer.ln_f.weight"] = final_norm
        files[-tp + rank]["lm_head.weight"] = np.split(head, tp)[rank]
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "logits_dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": num_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_size": HEAD,
        "hidden_act": "silu",
        "norm_epsilon": EPSILON,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": 128,
        "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp, "cp_size": 1},
        "quantization": {"quant_algo": algo, "kv_cache_quant_algo": None} | keys,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for rank, tensors in enumerate(files):
        write_safetensors(folder / f"rank{rank}.safetensors", tensors)
    prompt = random.integers(3, VOCABULARY, 12).tolist()
    logits = logits_of(prompt, embedding, layers, final_norm.astype(np.float64), head.astype(np.float64))
    write_safetensors(folder / "golden.safetensors", {"short.logits_fp32": logits.astype(np.float32)})
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
