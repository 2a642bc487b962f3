"""Who wrote a checkpoint, told from its structure. One small table; the first row that fits decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["DIALECTS", "dialect_of"]

_Keys = Mapping[Any, Any]


def _has(*keys: str) -> Callable[[_Keys], bool]:
    wanted = frozenset(keys)
    return lambda tree: wanted <= tree.keys()


def _any_of(required: str, *others: str) -> Callable[[_Keys], bool]:
    return lambda tree: required in tree and any(key in tree for key in others)


def _holds(key: str, *keys: str) -> Callable[[_Keys], bool]:
    wanted = frozenset(keys)
    return lambda tree: isinstance(tree.get(key), Mapping) and wanted <= tree[key].keys()


DIALECTS: Final[tuple[tuple[str, Callable[[_Keys], bool]], ...]] = (
    ("lightning", _has("pytorch-lightning_version")),
    ("accelerate", _has("random_state", "numpy_random_seed", "torch_manual_seed")),
    ("hf-trainer", _has("python", "numpy", "cpu")),
    ("hippynn", _any_of("controller", "metric_tracker", "torch_rng_state")),
    ("deepspeed", _has("module", "ds_version")),
    ("deepspeed", _has("optimizer_state_dict", "ds_version")),
    ("hippynn", _has("training_modules", "controller", "database")),
    ("composer", _holds("state", "model", "optimizers")),
    ("mmengine", _has("meta", "state_dict", "message_hub")),
    ("imagenet-example", _has("arch", "state_dict", "best_acc1")),
    ("torchtitan", _has("model", "optimizer", "lr_scheduler", "train_state")),
    ("fairseq", _has("optimizer_history", "extra_state")),
    ("nanogpt", _has("model_args", "iter_num")),
    ("megatron", _has("checkpoint_version", "args")),
    ("ultralytics", _has("train_args", "ema", "updates")),
    ("timm", _has("arch", "state_dict")),
)
"""Name of the writer and the top-level keys that only it sets."""


def dialect_of(tree: Any, manifest: Mapping[str, Any] | None) -> str:
    """The name of who wrote a tree, "plain" where nothing tells."""
    if manifest is not None:
        return "unmoor"
    if not isinstance(tree, Mapping):
        return "plain"
    return next((name for name, fits in DIALECTS if fits(tree)), "plain")
