"""What names in a folder of checkpoints mean: temporary ones, parts of another file, pointers. Tables and nothing else.

Names as the programs write them: transformers.trainer, accelerate.checkpointing, hippynn.experiment.serialization,
torch.distributed.checkpoint, unmoor's own hidden names; suffixes of downloaders, editors and copying programs.
"""

from __future__ import annotations

import re
from typing import Final

from .folder_plain import CHECKPOINTS

__all__ = ["ASIDE", "LASTING", "POINTERS", "SURE", "WITHIN", "temporary"]

SURE: Final = (".pt", ".pth", ".ckpt", ".safetensors")
"""How names end that are a checkpoint's and nothing else's."""

ASIDE: Final = re.compile(
    r"training_args\.bin|rng_state(?:_\d+)?\.pth|random_states_\d+\.pkl"
    r"|scaler(?:_\d+)?\.pt|scheduler(?:_\d+)?\.(?:pt|bin)"
    r"|sampler(?:_\d+)?\.bin|experiment_structure\.pt|training_metrics\.(?:pt|pkl)|(?:best_model|model_epoch_\d+)\.pt"
    r"|custom_checkpoint_\d+\.pkl"
)
"""Files that belong to a checkpoint and are none by themselves; also the models that hippynn writes beside states."""

POINTERS: Final[dict[str, str]] = {
    "latest": "{}",
    "latest.txt": "{}",
    "latest_checkpoint": "{}",
    "latest_checkpoint.txt": "{}",
    "last_checkpoint": "{}",
    "last_checkpoint.txt": "{}",
    "latest_checkpointed_iteration.txt": "iter_{:07d}",
}
"""Files that name the newest checkpoint, and what the name is that they mean by a number."""

LASTING: Final = re.compile(
    r"(?:global_?step|checkpoint|ckpt|step|iter|iteration|epoch)[-_]?\d+|(?:best|last|latest|final)(?:[-_].*)?|.*\.ckpt"
)
"""Names of folders that are one checkpoint whatever lies in them."""

WITHIN: Final = ("checkpoints", "checkpoint", "ckpts", "ckpt")
"""Folders in which programs put the checkpoints of a run: that of a run without its own is looked into."""

_TEMPORARY: Final = re.compile(
    r"\.(?P<own>.+)\.unmoor-[0-9a-f-]+\.(?:tmp|old)"
    r"|(?P<whole>.+?)(?:\.(?:tmp|temp|part|partial|incomplete|crdownload|download|aria2|filepart)|~)(?:[.-]?\d+)?"
    r"|\.(?P<copied>.+)\.[A-Za-z0-9]{6}|(?:tmp|temp)[-_](?P<staged>.+)",
    re.DOTALL,
)


def temporary(name: str) -> str:
    """The name that a temporary one was to become, where that may be a checkpoint's; "" for any other name.

    >>> temporary("model200000.pt.tmp"), temporary("tmp-checkpoint-500"), temporary("notes.txt.tmp"), temporary("a.pt")
    ('model200000.pt', 'checkpoint-500', '', '')
    """
    match = _TEMPORARY.fullmatch(name)
    meant = next((found for found in match.groups() if found), "") if match else ""
    return meant if meant.endswith(CHECKPOINTS) or LASTING.fullmatch(meant) else ""
