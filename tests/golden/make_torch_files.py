"""Writes files with torch.save for torch_file_test and torch_file_fuzz: some that are read, some that are refused.

    python3 tests/golden/make_torch_files.py tests/fuzz/torch_file     # the files there: torch 2.11
"""

import sys
import zipfile
from pathlib import Path

import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.embed.weight.data = torch.arange(12.0).reshape(4, 3) / 8
        self.head.weight = self.embed.weight
        self.norm = nn.LayerNorm(3).to(torch.bfloat16)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("packed", torch.arange(6, dtype=torch.int32).reshape(2, 3))
        self.register_buffer("zeros", torch.arange(-2, 2, dtype=torch.int8))
        self.register_buffer("bytes", torch.arange(4, dtype=torch.uint8))
        self.register_buffer("scale", torch.tensor([0.5, 2.0], dtype=torch.float16))
        self.register_buffer("none", torch.empty(0, 3))


folder = Path(sys.argv[1])
rows = torch.arange(12.0).reshape(4, 3)
READ = {
    "state_dict": Tied().state_dict(),
    "rows": {"all": rows, "middle": rows[1:3], "parameter": nn.Parameter(rows[3])},
    "fp8": {"w": rows.to(torch.float8_e4m3fn), "s": torch.tensor([0.5])},
}
REFUSED = {
    "module": Tied(),
    "tensor": rows,
    "nested": {"epoch": 3, "state_dict": {"w": rows}},
    "transposed": {"w": rows.t()},
    "expanded": {"w": torch.zeros(1).expand(5)},
    "double": {"w": rows.double()},
    "sparse": {"w": torch.eye(3).to_sparse()},
    "meta": {"w": torch.empty(3, device="meta")},
}
for name, value in (READ | REFUSED).items():
    torch.save(value, folder / f"{name}.bin")
torch.save(READ["rows"], folder / "legacy.bin", _use_new_zipfile_serialization=False)
torch.save(READ["rows"], folder / "protocol4.bin", pickle_protocol=4)
torch.serialization.set_crc32_options(False)
torch.save(READ["rows"], folder / "nocrc.bin")

# The fuzz target also takes pickles alone, so that its changes are not all found by the checksum.
for name in READ:
    with zipfile.ZipFile(folder / f"{name}.bin") as archive:
        (folder / f"{name}.pkl").write_bytes(archive.read(f"{name}/data.pkl"))
