"""Writes the PyTorch files of this folder: python make_pt.py (torch 2). `src/pt/tests.rs` has their values."""
import collections

import torch

grid = torch.arange(12, dtype=torch.float32).reshape(3, 4)
module = torch.nn.Linear(2, 3)
with torch.no_grad():
    module.weight.copy_(torch.arange(6).reshape(3, 2) / 4)
    module.bias.copy_(torch.tensor([-1.0, 0.0, 1.0]))

torch.save({
    "f32": grid, "f16": grid.half(), "bf16": grid.bfloat16(), "f64": grid.double(), "i32": grid.int() - 6,
    "i64": torch.tensor([[-(2 ** 63), -1], [2 ** 53 + 1, 2 ** 63 - 1]]), "u8": grid.byte(), "bool": grid > 5,
    "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3),
    "views": {
        "transposed": grid.t(), "row": grid[1], "column": grid[:, 2], "corner": grid[1:, ::2],
        "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1), "one": grid[1:2, 1:2],
    },
    "module": module.state_dict(), "parameter": torch.nn.Parameter(torch.ones(2)),
    "list": [torch.tensor([1]), (torch.tensor([2]), None)],
    "none": None, "int": 1, "big": 2 ** 70, "negative": -3, "float": 0.5, "true": True, "text": "some", "size": grid.shape,
    "ordered": collections.OrderedDict(a=torch.tensor([7.0])),
}, "values.pt")
torch.save({"model": [module.state_dict()], "step": 100}, "training.pt")
torch.save({"nested": {"a": grid.half(), "b": grid.half()}}, "protocol4.pt", pickle_protocol=4)
