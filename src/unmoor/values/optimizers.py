"""What each optimizer class of torch keeps: the keys of its state and of its options.

Used to say "Adam-like" of a file and "SGD needs momentum_buffer" of a live optimizer. A test walks torch.optim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "CLASS_FLAGS",
    "COUNTERS",
    "EXECUTION_FLAGS",
    "FAMILIES",
    "RANK_STATE",
    "RUNNING_OPTIONS",
    "SHARED_OPTIONS",
    "OptimizerFamily",
    "counts_on_device",
    "guess_family",
    "keeps_state",
    "switched_on",
]

EXECUTION_FLAGS: Final = ("fused", "foreach", "capturable", "differentiable", "maximize")
"""Switches that say how a live optimizer computes. A file never flips them."""

CLASS_FLAGS: Final = ("decoupled_weight_decay",)
"""Options that tell Adam from AdamW and the like: part of the class, not a setting."""

SHARED_OPTIONS: Final = frozenset({"lr", "weight_decay", "initial_lr", "eps", *EXECUTION_FLAGS, *CLASS_FLAGS})
"""Options that many classes have, or that others add to a group: no evidence of the class."""

RUNNING_OPTIONS: Final = frozenset(
    "step counter update_counter k train_mode weight_sum lr_max scheduled_lr "
    "d d_hat d_max d_numerator d_denom d_de_nom numerator_weighted".split()
)
"""Options that steps change: state that some classes keep in their groups, which no wish about settings is about."""

COUNTERS: Final = ("step", "mu_product")
"""State keys of numbers that torch keeps on the host or beside their parameter, as class and switches want it."""

RANK_STATE: Final = frozenset({"prev_loss"})
"""State keys of which each replica has a value of its own: LBFGS keeps the loss of the rank's batch."""

_SWITCHED: Final = ("capturable", "fused")
_ALWAYS: Final = ("always",)


@dataclass(frozen=True, slots=True)
class OptimizerFamily:
    """One class of torch.optim: required and optional state keys, and the options that mark it.

    `elementwise` are the state keys whose tensors have the shape of their parameter. `beside` are the switches with
    which the class puts its counters beside their parameter. `begins` is the state that it makes in its constructor,
    before any step: for each key a number, or the option that holds it.
    """

    name: str
    state: tuple[str, ...]
    optional: tuple[str, ...]
    options: tuple[str, ...]
    elementwise: tuple[str, ...]
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = _SWITCHED
    begins: tuple[tuple[str, float | str], ...] = ()


_F = OptimizerFamily
FAMILIES: Final[dict[str, OptimizerFamily]] = {
    family.name: family
    for family in (
        _F("Adam", ("step", "exp_avg", "exp_avg_sq"), ("max_exp_avg_sq",), ("betas", "amsgrad"),
           ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), also=("AdamW",)),
        _F("SGD", ("momentum_buffer",), (), ("momentum", "dampening", "nesterov"), ("momentum_buffer",)),
        _F("RMSprop", ("step", "square_avg"), ("momentum_buffer", "grad_avg"), ("alpha", "centered", "momentum"),
           ("square_avg", "momentum_buffer", "grad_avg")),
        _F("Adagrad", ("step", "sum"), (), ("lr_decay", "initial_accumulator_value"), ("sum",),
           beside=("fused",), begins=(("step", 0.0), ("sum", "initial_accumulator_value"))),
        _F("Adadelta", ("step", "square_avg", "acc_delta"), (), ("rho",), ("square_avg", "acc_delta")),
        _F("Adamax", ("step", "exp_avg", "exp_inf"), (), ("betas",), ("exp_avg", "exp_inf")),
        _F("NAdam", ("step", "mu_product", "exp_avg", "exp_avg_sq"), (), ("betas", "momentum_decay"),
           ("exp_avg", "exp_avg_sq")),
        _F("RAdam", ("step", "exp_avg", "exp_avg_sq"), (), ("betas",), ("exp_avg", "exp_avg_sq")),
        _F("ASGD", ("step", "eta", "mu", "ax"), (), ("lambd", "alpha", "t0"), ("ax",), beside=_ALWAYS),
        _F("Rprop", ("step", "prev", "step_size"), (), ("etas", "step_sizes"), ("prev", "step_size")),
        _F("SparseAdam", ("step", "exp_avg", "exp_avg_sq"), (), ("betas",), ("exp_avg", "exp_avg_sq")),
        _F("LBFGS", ("func_evals", "n_iter"),
           ("d", "t", "old_dirs", "old_stps", "ro", "H_diag", "prev_flat_grad", "prev_loss", "al"),
           ("max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn"), ()),
        _F("Adafactor", ("step",), ("row_var", "col_var", "variance"), ("beta2_decay", "d"), ("variance",),
           beside=()),
        _F("Muon", ("momentum_buffer",), (), ("momentum", "nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn"),
           ("momentum_buffer",)),
    )
}  # fmt: skip


def counts_on_device(family: str, options: Mapping[str, Any]) -> bool:
    """Whether a group with these options keeps its counters beside its parameters; `family` is "" for other classes."""
    beside = FAMILIES[family].beside if family in FAMILIES else _SWITCHED
    return beside == _ALWAYS or any(options.get(switch) for switch in beside)


_BY_SWITCH: Final = {
    "Adam": {"amsgrad": "max_exp_avg_sq"},
    "RMSprop": {"momentum": "momentum_buffer", "centered": "grad_avg"},
}
"""State that a class makes with the first of its state and only under an option, and cannot do without later."""


def switched_on(family: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The option that is on -> the state that steps need by it."""
    return {option: key for option, key in _BY_SWITCH.get(family, {}).items() if options.get(option)}


def keeps_state(family: str, options: Mapping[str, Any]) -> bool:
    """Whether a class of the table has state for a parameter once it has stepped it."""
    return family in FAMILIES and (family != "SGD" or options.get("momentum", 0) != 0)


def guess_family(state_keys: Iterable[str], options: Iterable[str]) -> str:
    """The class that an optimizer state dict most looks like, "" where nothing fits.

    The options decide; the state keys break ties. An Adam without amsgrad among its options is an Adamax, NAdam or
    RAdam only by its own marks.
    """
    keys, opts = set(state_keys), set(options)
    best, best_score = "", 0
    for family in FAMILIES.values():
        allowed = set(family.state) | set(family.optional)
        if not keys <= allowed:
            continue
        marks = set(family.options)
        score = 4 * len(marks & opts) - 3 * len(marks - opts) + 2 * len(keys & allowed)
        if keys:
            score -= len(set(family.state) - keys)
        if score > best_score and marks & opts:
            best, best_score = family.name, score
    return best
