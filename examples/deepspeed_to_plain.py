"""A folder of DeepSpeed's ZeRO, of any stage and number of ranks, into plain PyTorch in one process.

    python examples/deepspeed_to_plain.py out/checkpoint

DeepSpeed is not needed, and nothing in the folder is run. The exact fp32 weights and the optimizer's moments come out
of the partitions of all ranks, each to its parameter by name. The model is the one that was trained; here it is built
from the shapes that the folder tells.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import unmoor


def main(path: str) -> None:
    print(unmoor.describe(path))
    tree = unmoor.load(path)  # whole tensors by name, on the CPU
    model = nn.ParameterDict({name.replace(".", "_"): torch.zeros_like(t) for name, t in tree["model"].items()})
    optimizer = torch.optim.AdamW(model.parameters())
    report = unmoor.restore(path, model=model, optimizer=optimizer, rename=lambda name: name.replace(".", "_"))
    print(report)


if __name__ == "__main__":
    main(sys.argv[1])
