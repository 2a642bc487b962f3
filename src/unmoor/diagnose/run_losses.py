"""Which targets and weights torch's losses take. One row a loss; a test runs each of them."""

from __future__ import annotations

from typing import Final

__all__ = ["TAKES", "WEIGHTED", "takes"]

TAKES: Final[dict[str, str]] = {
    "CrossEntropyLoss": "classes", "cross_entropy": "classes",
    "NLLLoss": "indices", "nll_loss": "indices",
    "MultiMarginLoss": "long", "multi_margin_loss": "long",
    "MultiLabelMarginLoss": "long", "multilabel_margin_loss": "long",
    "BCEWithLogitsLoss": "floating", "binary_cross_entropy_with_logits": "floating",
    "BCELoss": "same", "binary_cross_entropy": "same",
    "HuberLoss": "same", "huber_loss": "same",
    "KLDivLoss": "floating", "kl_div": "floating",
    "L1Loss": "numbers", "l1_loss": "numbers",
    "SoftMarginLoss": "numbers", "soft_margin_loss": "numbers",
    "MultiLabelSoftMarginLoss": "numbers", "multilabel_soft_margin_loss": "numbers",
    "GaussianNLLLoss": "numbers", "gaussian_nll_loss": "numbers",
}  # fmt: skip
"""Class or function -> what its target may be: indices of classes (int64 or uint8; "classes" also probabilities), int64
alone, any floating dtype, the same dtype as the output, any number but bool."""

WEIGHTED: Final = frozenset({"CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss"})
"""Losses whose `weight` must have the dtype of the output."""

_FLOATING: Final = frozenset({"float32", "float64", "float16", "bfloat16"})
_WORDS: Final = {
    "classes": "indices of classes as int64, or probabilities as a floating dtype in the shape of the output",
    "indices": "indices of classes as int64",
    "long": "int64",
    "floating": "a floating dtype",
    "same": "the dtype of the output",
    "numbers": "numbers, not bool",
}


def takes(loss: str, dtype: str, output: str, *, flat: bool) -> str:
    """What the loss wants instead of a target of this dtype, "" where it takes it or nothing is known.

    `output` is the dtype of the model's parameters, "" where that is not one. `flat` tells that the target has one
    number a sample where the output has several.
    """
    rule = TAKES.get(loss, "")
    fine = {
        "": True,
        "classes": dtype in ("int64", "uint8") or (dtype in _FLOATING and not flat),
        "indices": dtype in ("int64", "uint8"),
        "long": dtype == "int64",
        "floating": dtype in _FLOATING,
        "same": not output or dtype == output,
        "numbers": dtype != "bool",
    }
    return "" if fine[rule] else _WORDS[rule]
