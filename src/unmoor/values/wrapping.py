"""Which wrapper puts which segment into the names of a state dict. Must not know torch."""

from __future__ import annotations

from typing import Final

__all__ = ["WRAPPER_SEGMENTS"]

WRAPPER_SEGMENTS: Final = {
    "module": "DataParallel or DistributedDataParallel",
    "_orig_mod": "torch.compile",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_fsdp_wrapped_module": "FSDP",
    "_forward_module": "Lightning Fabric",
}
"""Segment -> who puts it there. A user's submodule may bear one of these names too."""
