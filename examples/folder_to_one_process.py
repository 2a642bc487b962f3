"""What several ranks saved, opened in one process without torch.distributed.

    torchrun --nproc-per-node 3 examples/fsdp2_save_resume.py run
    python examples/folder_to_one_process.py run

The digest is the one that the ranks printed. To have the weights as a file: unmoor.convert("run", "model.safetensors",
only="model").
"""

from __future__ import annotations

import sys
import zlib

import torch
from torch import nn

import unmoor


def main(path: str) -> None:
    print(unmoor.describe(path))

    model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    report = unmoor.restore(path, model=model, optimizer=optimizer)
    print(report)

    found = 0
    for param in model.parameters():
        for tensor in (param.detach(), optimizer.state[param]["exp_avg"]):
            found = zlib.crc32(tensor.numpy().tobytes(), found)
    print(f"one process: resumed at step {report.extra['step']}, {found:08x}")


if __name__ == "__main__":
    main(sys.argv[1])
