"""Recurrent cells of the simulated accelerator.

PyTorch calls a fused kernel for them on every device but the CPU. Here that kernel is the composition of its
parts, registered above autograd, which then differentiates the parts.
"""

import torch
from torch import Tensor

LIBRARY = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Register both cells."""
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        LIBRARY.impl("_thnn_fused_lstm_cell", _lstm_cell, key)
        LIBRARY.impl("_thnn_fused_gru_cell", _gru_cell, key)


def _lstm_cell(
    of_input: Tensor, of_hidden: Tensor, cell: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = of_input + of_hidden + sum(bias for bias in biases if bias is not None)
    write, keep, candidate, emit = gates.chunk(4, 1)
    cell = keep.sigmoid() * cell + write.sigmoid() * candidate.tanh()
    return emit.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(of_input: Tensor, of_hidden: Tensor, hidden: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor]:
    input_bias, hidden_bias = (0 if bias is None else bias for bias in (biases or (None, None)))
    input_reset, input_keep, input_new = (of_input + input_bias).chunk(3, 1)
    hidden_reset, hidden_keep, hidden_new = (of_hidden + hidden_bias).chunk(3, 1)
    keep = (input_keep + hidden_keep).sigmoid()
    new = (input_new + (input_reset + hidden_reset).sigmoid() * hidden_new).tanh()
    return (hidden - new) * keep + new, of_hidden
