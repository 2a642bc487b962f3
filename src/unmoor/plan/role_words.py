"""What the words of a key path say of a part: which role it is for, and which of several objects of a role."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.finding import Finding
from unmoor.values.target import TargetModule, TargetObject, TargetOptimizer

__all__ = ["WORDS", "AnyTarget", "is_average", "key_of", "misplaced", "named_for", "names_role", "stem"]

AnyTarget = TargetModule | TargetOptimizer | TargetObject

WORDS: Final[dict[str, tuple[str, ...]]] = {
    "model": (
        "model",
        "state_dict",
        "model_state_dict",
        "model_state",
        "net",
        "network",
        "module",
        "weights",
        "params",
    ),
    "ema": ("ema", "average", "avg", "shadow", "teacher", "swa", "ema_state_dict", "model_ema"),
    "loss": ("loss", "criterion", "loss_fn"),
    "optimizer": ("optimizer", "opt", "optim", "optimizer_state_dict", "optimizer_state"),
    "metrics": ("metrics", "metric", "evaluator", "metric_tracker"),
    "scheduler": ("scheduler", "lr_scheduler", "sched"),
    "scaler": ("scaler", "grad_scaler", "amp"),
}
_AVERAGES: Final = ("ema", "avg", "average", "swa", "shadow", "teacher")


def key_of(label: str) -> tuple[str, str]:
    """Role and key of a label: `optimizer[gen]` -> ("optimizer", "gen")."""
    role, _, rest = label.partition("[")
    return role, rest.removesuffix("]")


_TOLD_APART: Final = ("optimizer", "scheduler", "scaler")


def misplaced(part: Part, target: AnyTarget, at: Mapping[str, Any]) -> list[Finding]:
    """What there is to tell of a part that stands under the key of another role, and not because the caller said so."""
    words = {str(key).lower() for key in part.keys}
    if target.label == "model" and "model" not in at and is_average(part):
        message = f"its weights come from {part.path!r}, averages of the trained ones: no others in the file fit"
        return [Finding("model-from-averages", "info", target.label, message, "")]
    mine = words & {target.role, *WORDS.get(target.role, ())}
    if target.role not in (*_TOLD_APART, "model") or mine or {target.label, target.role} & at.keys():
        return []
    other = next((role for role in _TOLD_APART if words & {role, *WORDS[role]}), "")
    message = f"its state stands under the key {part.path!r} in the file, the {other}'s; told by its content"
    remedy = "the program that saved it swapped the two"
    return [Finding("roles-swapped", "warning", target.label, message, remedy)] if other else []


def named_for(part: Part, target: AnyTarget) -> bool:
    """Whether the key path of a part names the role of a live object, and its key where it is one of several."""
    role, key = key_of(target.label)
    return any(_is_for(word, key) for word in _words(part)) if key else names_role(part, role)


def names_role(part: Part, role: str) -> bool:
    """Whether the key path of a part names a role."""
    words = [word.lower() for word in _words(part)]
    averaged = is_average(part)
    if role == "ema" and averaged:
        return True
    if role == "model":
        return (
            not averaged
            and not any("best" in word for word in words)
            and (not words or any(word in WORDS["model"] for word in words))
        )
    known = WORDS.get(role, (role,))
    return any(word in known or role in word for word in words)


_ROLE_WORDS: Final = frozenset(
    {"net", "network", "model", "module", "optimizer", "optim", "opt", "scheduler", "sched", "state", "dict", "weights"}
)


def is_average(part: Part) -> bool:
    """Whether a word on the way to a part says that it is an average of the trained weights."""
    return any(piece.startswith(_AVERAGES) for key in part.keys for piece in _pieces(str(key)))


def _is_for(word: str, key: str) -> bool:
    """Whether a name speaks of a key: it has it as a word, or ends in it without the words of its role.

    So netG_A, optim_g_a and latest_net_G_A are all for G_A.
    """
    if key.lower() in (word.lower(), *re.split(r"[^a-z0-9]+", word.lower())):
        return True
    wanted, found = ([piece for piece in _pieces(text) if piece not in _ROLE_WORDS] for text in (key, word))
    return bool(wanted) and found[-len(wanted) :] == wanted


def _pieces(word: str) -> list[str]:
    """The words that a name is made of, in small letters."""
    return [piece.lower() for piece in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", word)]


def _words(part: Part) -> list[str]:
    """The keys that lead to a part. A file of a folder counts by its name without the ending, and only at its root."""
    words = [str(key) for key in part.keys]
    if "file" not in part.detail:
        return words
    return words[1:] or [stem(words[0])]


def stem(file: str) -> str:
    """The name of a file without its endings."""
    return file.partition(".")[0]
