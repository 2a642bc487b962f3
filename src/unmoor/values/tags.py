"""Device tags: the strings by which a file or a live tensor says where it lives.

Must not know torch. A tag is `type` or `type:index`, in lower case; `cpu:0` and `CPU` both mean `cpu`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["KNOWN_DEVICE_TYPES", "is_tag", "normalize_tag", "split_tag"]

KNOWN_DEVICE_TYPES: Final = frozenset(
    """
    cpu cuda mps xpu hpu xla npu mtia maia meta ipu ve vulkan hip privateuseone lazy opencl ideep sim
    """.split()
)


def split_tag(tag: str) -> tuple[str, int | None]:
    """`cuda:7` -> ("cuda", 7); `mps` -> ("mps", None). ValueError for text that is no tag."""
    kind, _, index = tag.strip().lower().partition(":")
    if not kind.replace("_", "").isalnum() or (index and not index.isdigit()) or len(tag) > 64:
        raise ValueError(f"{tag[:80]!r} is not a device tag such as 'cpu', 'cuda:0' or 'mps'")
    return kind, int(index) if index else None


def normalize_tag(tag: str) -> str:
    """The one spelling of a tag: lower case, `cpu` without an index, others as given."""
    kind, index = split_tag(tag)
    return kind if kind == "cpu" or index is None else f"{kind}:{index}"


def is_tag(text: str) -> bool:
    """Whether `text` reads as a device tag of a type that PyTorch knows."""
    try:
        return split_tag(text)[0] in KNOWN_DEVICE_TYPES
    except ValueError:
        return False
