"""Optimizers of other packages that people train with, each as a row: how it is made over parameters or groups.

A row is a plain constructor call with options that make a short run meet all of its state.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import torch
from torch.optim import Optimizer

from .optimizer_runs import SHAPES

__all__ = ["PACKAGES", "rows", "shapes_of"]

Make = Callable[..., Optimizer]


def _plain(package: Any, name: str, **options: Any) -> Make:
    return lambda params: getattr(package, name)(params, **options)


def _schedulefree() -> dict[str, Make]:
    package = import_module("schedulefree")
    return {
        "AdamWScheduleFree": _plain(package, "AdamWScheduleFree", lr=0.01, warmup_steps=2),
        "AdamWScheduleFree foreach=False": _plain(package, "AdamWScheduleFree", lr=0.01, foreach=False),
        "RAdamScheduleFree": _plain(package, "RAdamScheduleFree", lr=0.01),
        "SGDScheduleFree": _plain(package, "SGDScheduleFree", lr=0.1),
    }


def _pytorch_optimizer() -> dict[str, Make]:
    package = import_module("pytorch_optimizer")
    adam = lambda params: torch.optim.Adam(params, lr=0.01)
    options: dict[str, dict[str, Any]] = {
        "AdaBelief": {"amsgrad": True}, "AdaFactor": {}, "AdEMAMix": {}, "ADOPT": {}, "AdamP": {}, "Adan": {},
        "CAME": {}, "DAdaptAdam": {}, "GaLore": {}, "Kron": {}, "LARS": {"lr": 0.01}, "Lamb": {}, "Lion": {},
        "MADGRAD": {}, "NovoGrad": {}, "Prodigy": {}, "RAdam": {}, "Ranger": {"k": 2},
        "Ranger21": {"num_iterations": 20},
        "ScheduleFreeAdamW": {}, "Shampoo": {}, "ScalableShampoo": {"start_preconditioning_step": 1},
        "SOAP": {"precondition_frequency": 2}, "StableAdamW": {}, "Tiger": {},
    }  # fmt: skip
    made = {name: _plain(package, name, **given) for name, given in options.items()}
    made["SophiaH"] = lambda params: _sophia(package)(params)
    made["GaLore rank=2"] = lambda params: package.GaLore([{**g, "rank": 2} for g in _as_groups(params)])
    made["Lookahead(Adam)"] = lambda params: package.Lookahead(adam(params), k=2)
    made["SAM(SGD)"] = lambda params: package.SAM(params, torch.optim.SGD, lr=0.1, momentum=0.9)
    made["Muon"] = lambda params: package.Muon([{**g, "use_muon": True} for g in _as_groups(params)])
    made["GrokFastAdamW"] = _plain(package, "GrokFastAdamW", grokfast_after_step=0)
    return made


def _as_groups(params: Any) -> list[dict[str, Any]]:
    found = list(params)
    return found if found and isinstance(found[0], dict) else [{"params": found}]


def _sophia(package: Any) -> type[Optimizer]:
    class SophiaH(package.SophiaH):
        """Takes the squares of the gradients for the diagonal of the Hessian, which a formula cannot give."""

        def step(self, closure: Any = None) -> Any:
            held = [p for group in self.param_groups for p in group["params"]]
            zero = torch.zeros_like
            return super().step(closure, hessian=[zero(p) if p.grad is None else p.grad.square() for p in held])

    return SophiaH


def _bitsandbytes() -> dict[str, Make]:
    package = import_module("bitsandbytes").optim
    small = {"min_8bit_size": 1}
    return {
        "bnb.Adam": _plain(package, "Adam", lr=0.01),
        "bnb.AdamW8bit": _plain(package, "AdamW8bit", lr=0.01, **small),
        "bnb.AdEMAMix8bit": _plain(package, "AdEMAMix8bit", lr=0.01, **small),
        "bnb.Lion8bit": _plain(package, "Lion8bit", lr=0.01, **small),
        "bnb.PagedAdamW": _plain(package, "PagedAdamW", lr=0.01),
        "bnb.RMSprop": _plain(package, "RMSprop", lr=0.01),
        "bnb.SGD8bit": _plain(package, "SGD8bit", lr=0.01, momentum=0.9, **small),
        "bnb.LAMB": _plain(package, "LAMB", lr=0.01),
        "bnb.LARS": _plain(package, "LARS", lr=0.01, momentum=0.9),
    }


PACKAGES: Final = {
    "schedulefree": _schedulefree,
    "pytorch_optimizer": _pytorch_optimizer,
    "bitsandbytes": _bitsandbytes,
}
"""Each package with its rows; a package is imported when its rows are asked for."""


CONTIGUOUS: Final = ("weight", "bias", "embedding")
"""Parameters that are laid out without gaps, last dimension first."""


def rows(package: str) -> dict[str, Make]:
    """The rows of one package. Raises ImportError where it is missing."""
    return PACKAGES[package]()


def shapes_of(package: str) -> tuple[str, ...]:
    """The parameters that a row is tried on; bitsandbytes makes others contiguous in the first step."""
    return CONTIGUOUS if package == "bitsandbytes" else tuple(SHAPES)
