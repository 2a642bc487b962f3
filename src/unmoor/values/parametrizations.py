"""Ways to keep a tensor in another form than itself: what each puts into a state dict, and how one gets rid of it.

One row a way. `names` are patterns of the tensors that stand in the place of `T` (with its module's prefix). Two rows
of one `family` hold the same numbers under other names, in the order of their patterns.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["PARAMETRIZATIONS", "Parametrization", "found_in"]


@dataclass(frozen=True, slots=True)
class Parametrization:
    """One way. `apply` and `remove` are the calls that give it to a module and take it away."""

    name: str
    names: tuple[str, ...]
    family: str
    apply: str
    remove: str

    def spelled(self, stem: str) -> tuple[str, ...]:
        """The names of the tensors that stand for the one called `stem`.

        >>> PARAMETRIZATIONS["torch.nn.utils.weight_norm"].spelled("0.weight")
        ('0.weight_g', '0.weight_v')
        """
        module, _, tensor = stem.rpartition(".")
        prefix = f"{module}." if module else ""
        return tuple(prefix + pattern.replace("T", tensor) for pattern in self.names)


_REMOVE: Final = 'torch.nn.utils.parametrize.remove_parametrizations(module, "{tensor}")'

PARAMETRIZATIONS: Final[dict[str, Parametrization]] = {
    row.name: row
    for row in (
        Parametrization(
            "torch.nn.utils.weight_norm",
            ("T_g", "T_v"),
            "weight_norm",
            'torch.nn.utils.weight_norm(module, "{tensor}")',
            'torch.nn.utils.remove_weight_norm(module, "{tensor}")',
        ),
        Parametrization(
            "torch.nn.utils.parametrizations.weight_norm",
            ("parametrizations.T.original0", "parametrizations.T.original1"),
            "weight_norm",
            'torch.nn.utils.parametrizations.weight_norm(module, "{tensor}")',
            _REMOVE,
        ),
        Parametrization(
            "torch.nn.utils.spectral_norm",
            ("T_orig", "T_u", "T_v"),
            "spectral_norm (power iteration before each use)",
            'torch.nn.utils.spectral_norm(module, "{tensor}")',
            'torch.nn.utils.remove_spectral_norm(module, "{tensor}")',
        ),
        Parametrization(
            "torch.nn.utils.parametrizations.spectral_norm",
            ("parametrizations.T.original", "parametrizations.T.0._u", "parametrizations.T.0._v"),
            "spectral_norm",
            'torch.nn.utils.parametrizations.spectral_norm(module, "{tensor}")',
            _REMOVE,
        ),
        Parametrization(
            "torch.nn.utils.prune",
            ("T_orig", "T_mask"),
            "prune",
            'torch.nn.utils.prune.identity(module, "{tensor}")',
            'torch.nn.utils.prune.remove(module, "{tensor}")',
        ),
        Parametrization(
            "torch.nn.utils.parametrize",
            ("parametrizations.T.original",),
            "parametrize",
            'torch.nn.utils.parametrize.register_parametrization(module, "{tensor}", ...)',
            _REMOVE,
        ),
    )
}
"""By name. Where the names of two rows fit, the earlier one holds."""


def found_in(names: Collection[str]) -> dict[str, str]:
    """Name of the tensor -> the row whose names a state dict has for it.

    >>> found_in(["0.bias", "0.weight_g", "0.weight_v"])
    {'0.weight': 'torch.nn.utils.weight_norm'}
    """
    found: dict[str, str] = {}
    held = set(names)
    for row in PARAMETRIZATIONS.values():
        for name in names:
            stem = _stem(name, row.names[0])
            if stem and stem not in found and held.issuperset(row.spelled(stem)):
                found[stem] = row.name
    return found


def _stem(name: str, pattern: str) -> str:
    """The tensor that a name stands for by a pattern; "" for none."""
    head, tail = map(re.escape, pattern.split("T"))
    match = re.fullmatch(rf"((?:.*\.)?){head}([^.]+){tail}", name)
    return match[1] + match[2] if match else ""
