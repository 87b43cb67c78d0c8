"""Folders of `tandem quantize --export_format hf` in transformers: their logits beside the server's.

    pip install torch transformers compressed-tensors accelerate
    python3 tests/e2e/exported_folders.py build/dev/tandem [--dtype bfloat16]

Not a test of CI, which has no torch. For each qformat the embedded target is quantized and exported; transformers and the server
compute the logits of the same tokens in the given type; transformers once without rounding the inputs of products, as the server on a
CPU does unless they are int8, and once as the folder says. Prints the largest difference, the largest logit, and how many of the most
likely tokens are the same, for both; fails if the former differ by more than the limit.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from harness import REPOSITORY, Server, tandem
from transformers import AutoModelForCausalLM, AutoTokenizer

QFORMATS = ("full_prec", "fp8", "int8_sq", "int8_wo", "int4_wo", "int4_awq", "w4a8_awq", "fp8+kv")
TEXTS = (
    'What does "tandem" mean? An arrangement of two or more objects or persons one behind another',
    "Define aback. Having the wind against the forward side of the sails",
)
LIMIT = {"float32": 2e-3, "bfloat16": 1.0}
LIMIT_INT8_INPUTS = 2.0  # the server rounds them, in groups of 128


def without_rounded_inputs(model):
    for layer in model.modules():
        if hasattr(layer, "quantization_scheme"):
            layer.quantization_scheme.input_activations = None


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def ours(server, ids):
    def tensor(name, datatype, values):
        return {"name": name, "datatype": datatype, "shape": [1, len(values)], "data": values}

    status, answer = server.post(
        "/v2/models/tensorrt_llm/infer",
        {
            "inputs": [
                tensor("input_ids", "INT32", ids),
                tensor("input_lengths", "INT32", [len(ids)]),
                tensor("request_output_len", "INT32", [1]),
                tensor("return_context_logits", "BOOL", [True]),
            ]
        },
    )
    if status != 200:
        raise AssertionError(answer)
    found = next(output for output in answer["outputs"] if output["name"] == "context_logits")
    return torch.tensor(found["data"]).reshape(found["shape"])[0]


class Difference:
    def __init__(self):
        self.most = self.largest = 0.0
        self.same = self.rows = 0

    def add(self, found, expected):
        self.most = max(self.most, (found - expected).abs().max().item())
        self.largest = max(self.largest, expected.abs().max().item())
        self.same += (found.argmax(-1) == expected.argmax(-1)).sum().item()
        self.rows += len(expected)

    def __str__(self):
        return f"{self.most:.2e} of {self.largest:.1f}, {self.same} of {self.rows} tokens"


def compare(qformat, folder, dtype):
    """True if the logits are within the limit."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(text).input_ids for text in TEXTS]
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), output_loading_info=True
    )
    wrong = {key: names for key, names in loading.items() if names}
    if wrong:
        raise AssertionError(wrong)
    model.eval()
    as_written, as_computed = Difference(), Difference()
    server = Server(folder, "--decoupled", "false")
    try:
        found = [ours(server, ids) for ids in prompts]
    finally:
        server.stop()
    for ids, logits in zip(prompts, found):
        as_written.add(logits, logits_of(model, ids))
    without_rounded_inputs(model)
    for ids, logits in zip(prompts, found):
        as_computed.add(logits, logits_of(model, ids))
    good = as_computed.most <= max(LIMIT[dtype], LIMIT_INT8_INPUTS if qformat == "int8_sq" else 0.0)
    print(f"{qformat:10} {as_computed}; as written {as_written}{'' if good else '  TOO FAR'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=LIMIT, default="float32")
    parser.add_argument("--model", type=Path, default=REPOSITORY / "models/dictionary/target")
    parser.add_argument("--qformat", action="append")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as work:
        for qformat in options.qformat or QFORMATS:
            folder = Path(work) / qformat
            tandem(
                *("quantize", options.model, "--qformat", qformat.removesuffix("+kv"), "--export_format", "hf"),
                *("--output_dir", folder, "--dtype", options.dtype, "--calib_size", 64),
                *(("--kv_cache_dtype", "fp8") if qformat.endswith("+kv") else ()),
            )
            good &= compare(qformat, folder, options.dtype)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
