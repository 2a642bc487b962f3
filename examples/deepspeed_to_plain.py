"""A folder of DeepSpeed's ZeRO, of any stage and number of ranks, into plain PyTorch in one process.

    python examples/deepspeed_to_plain.py out/checkpoint

DeepSpeed is not needed, and nothing in the folder is run. The exact fp32 weights and the optimizer's moments come out
of the partitions of all ranks, each to its parameter by name. The model is the one that was trained, without
DeepSpeed's engine; here it is made of the shapes that the folder tells.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import unmoor


def main(path: str) -> None:
    tree = unmoor.load(path)  # whole tensors by name, on the CPU
    shapes = {name.replace(".", "_"): tensor.shape for name, tensor in tree["model"].items()}
    model = nn.ParameterDict({name: torch.zeros(shape) for name, shape in shapes.items()})
    optimizer = torch.optim.AdamW(model.parameters())

    report = unmoor.restore(path, model=model, optimizer=optimizer, rename=lambda name: name.replace(".", "_"))
    print(report)

    for name, tensor in tree["model"].items():
        param = model[name.replace(".", "_")]
        assert torch.equal(param, tensor)
        assert torch.equal(optimizer.state[param]["exp_avg"], tree["optimizer"]["state"][name]["exp_avg"])
    print(f"{len(model)} parameters, equal bit for bit")


if __name__ == "__main__":
    main(sys.argv[1])
