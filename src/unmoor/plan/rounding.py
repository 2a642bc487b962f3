"""Copies that would lose digits on their way to the live dtype."""

from __future__ import annotations

from collections.abc import Iterable

from unmoor.values.dtypes import is_exact_cast
from unmoor.values.plan import Copy
from unmoor.values.text import listing

from .policy import Fault, Policy

__all__ = ["rounding_faults"]


def rounding_faults(label: str, copies: Iterable[Copy], policy: Policy, *, what: str = "") -> list[Fault]:
    """One fault for each pair of dtypes; none where the policy allows any cast. `what` stands before the names."""
    casts: dict[tuple[str, str], list[str]] = {}
    for copy in copies if policy.cast != "any" else ():
        if copy.node.dtype != copy.slot.dtype and not is_exact_cast(copy.node.dtype, copy.slot.dtype):
            casts.setdefault((copy.node.dtype, copy.slot.dtype), []).append(copy.name)
    return [
        Fault(
            "mismatch",
            label,
            f"{what}{listing(names)}    saved {saved}, live {live}: values would be rounded",
            'cast="any" allows it',
        )
        for (saved, live), names in casts.items()
    ]
