"""What becomes of optimizer state when model and groups change: situations, for files with names and without.

Each situation says by hand where the state of every live parameter must come from, and what the learning rates must be.
`python -m tests.matrix.by_name` prints the table, with plain torch.load + load_state_dict beside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Adam

import unmoor
from tests.cases.files import same_bits

__all__ = [
    "CARRIERS",
    "LIVE_LR",
    "SITUATIONS",
    "Live",
    "Situation",
    "build",
    "carry",
    "plain",
    "right",
    "step",
    "table",
    "verdict",
]

Groups = tuple[tuple[str, float], ...]
"""Parameter groups: the layers of each, one letter a layer, and its learning rate."""

LIVE_LR: Final = 0.9


class Net(nn.Module):
    """Layers of one matrix each, listed in the order of `layers`; all of one shape, or each of its own."""

    def __init__(self, layers: str, *, alike: bool, shapes: Mapping[str, str]) -> None:
        super().__init__()
        for layer in layers:
            size = 1 if alike else ord(shapes.get(layer) or layer) - ord("a") + 1
            self.add_module(layer, nn.Linear(size, 3, bias=False))


@dataclass(frozen=True)
class Situation:
    """Saved and live layers and groups; `origin` is live -> saved layer where that is another, "" for none.

    `expected` are the verdicts by carrier, in the order of CARRIERS. `rates` are the live groups' learning rates after.
    """

    name: str
    saved: str
    live: str
    expected: tuple[str, str, str, str]
    groups: Groups = ()
    live_groups: tuple[str, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = (0.1,)
    aside: str = ""


ALL = (("abc", 0.1),)
TWO = (("ab", 0.1), ("c", 0.2))
NAMED = ("name", "name")

SITUATIONS: Final = (
    Situation("nothing changed", "abc", "abc", (*NAMED, "position", "position")),
    Situation("layers in another order", "abc", "cab", (*NAMED, "file", "refused")),
    Situation("optimizer in another order", "abc", "abc", (*NAMED, "file", "swapped ?"), live_groups=("cba",)),
    Situation("a group split", "abc", "abc", (*NAMED, "file", "file ?"), live_groups=("ab", "c"), rates=(0.1, 0.1)),
    Situation("groups merged", "abc", "abc", (*NAMED, "file", "refused"), groups=(("ab", 0.1), ("c", 0.1))),
    Situation("groups merged that differ", "abc", "abc", ("refused",) * 4, groups=TWO),
    Situation("groups merged that differ, live options", "abc", "abc", (*NAMED, "file", "refused"), groups=TWO,
              modes={"hyperparameters": "live"}, rates=(LIVE_LR,)),
    Situation("groups in another order", "abc", "abc", (*NAMED, "file", "refused"), groups=TWO,
              live_groups=("c", "ab"), rates=(0.2, 0.1)),
    Situation("groups of one size in another order", "abc", "abc", (*NAMED, "file", "swapped ?"),
              groups=(("a", 0.1), ("b", 0.2), ("c", 0.3)), live_groups=("c", "a", "b"), rates=(0.3, 0.1, 0.2)),
    Situation("a layer frozen", "abc", "abc", (*NAMED, "file", "file ?"), live_groups=("bc",), aside="a"),
    Situation("a group frozen", "abc", "abc", (*NAMED, "file", "refused"), groups=TWO, live_groups=("c",),
              rates=(0.2,), aside="ab"),
    Situation("a layer unfrozen", "abc", "abc", (*NAMED, "file", "refused"), groups=(("bc", 0.1),),
              origin={"a": ""}),
    Situation("a layer unfrozen in a group of its own", "abc", "abc", (*NAMED, "file", "refused"),
              groups=(("bc", 0.1),), live_groups=("bc", "a"), origin={"a": ""}, rates=(0.1, LIVE_LR)),
    Situation("a head added", "abc", "abcd", (*NAMED, "file", "file ?"), origin={"d": ""},
              modes={"missing": "fresh"}),
    Situation("a head added, not asked for", "abc", "abcd", ("refused",) * 4, origin={"d": ""}),
    Situation("a layer removed", "abc", "ac", (*NAMED, "file", "file ?"), modes={"unexpected": "ignore"}),
    Situation("a layer removed, not asked for", "abc", "ac", ("refused",) * 4),
    Situation("a head replaced", "abc", "abd", (*NAMED, "file", "refused"), origin={"d": ""},
              modes={"missing": "fresh", "unexpected": "ignore"}),
    Situation("a layer renamed, by a pattern", "abc", "axc", (*NAMED, "position", "position"), origin={"x": "b"},
              modes={"rename": {"b.*": "x.*"}}),
    Situation("a layer renamed, by a function", "abc", "axc", (*NAMED, "position", "position"), origin={"x": "b"},
              modes={"rename": lambda name: name.replace("b.", "x.")}),
)  # fmt: skip


@dataclass
class Live:
    """A model and its optimizer."""

    model: Net
    optimizer: Adam

    def state(self, layer: str) -> dict[str, Any]:
        return self.optimizer.state.get(getattr(self.model, layer).weight, {})


def build(layers: str, groups: Groups, *, alike: bool, named: bool = False, shapes: Mapping[str, str] = {}) -> Live:
    """A model of these layers and an Adam over these groups, no step taken."""
    model = Net(layers, alike=alike, shapes=shapes)
    made = []
    for members, rate in groups:
        params = [(f"{m}.weight", getattr(model, m).weight) if named else getattr(model, m).weight for m in members]
        made.append({"params": params, "lr": rate})
    return Live(model, Adam(made))


def step(live: Live) -> None:
    """Two steps, with gradients of each layer's own."""
    for turn in (1, 2):
        for name, parameter in live.model.named_parameters():
            generator = torch.Generator().manual_seed(100 * turn + ord(name[0]))
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        live.optimizer.step()


def _ours(live: Live, path: Path) -> None:
    unmoor.save(path, model=live.model, optimizer=live.optimizer, rng=False)


def _theirs(live: Live, path: Path) -> None:
    torch.save({"model": live.model.state_dict(), "optimizer": live.optimizer.state_dict()}, path)


CARRIERS: Final[dict[str, tuple[Callable[[Live, Path], None], bool, bool]]] = {
    "unmoor.save": (_ours, True, False),
    "param_names": (_theirs, True, True),
    "shapes tell": (_theirs, False, False),
    "shapes alike": (_theirs, True, False),
}
"""Who writes, whether all layers have one shape, whether the optimizer has torch's own names."""


def carry(situation: Situation, carrier: str, path: Path) -> tuple[Live, Live]:
    """Write the saved run of a situation; the saved run and the live one."""
    write, alike, named = CARRIERS[carrier]
    saved = build(situation.saved, situation.groups or ((situation.saved, 0.1),), alike=alike, named=named)
    step(saved)
    write(saved, path)
    groups = tuple((members, LIVE_LR) for members in situation.live_groups or (situation.live,))
    return saved, build(situation.live, groups, alike=alike, shapes=situation.origin)


def verdict(situation: Situation, carrier: str, path: Path) -> str:
    """What unmoor.restore does: by what it matched, with ` ?` where it warns that nothing proves it.

    `swapped` where a parameter has the state of another.
    """
    saved, live = carry(situation, carrier, path)
    try:
        report = unmoor.restore(path, model=live.model, optimizer=live.optimizer, **situation.modes)
    except unmoor.UnmoorError:
        return "refused"
    note = dict(report.plan.notes)["optimizer"]
    way = "name" if "matched by name" in note else "file" if "the order of the file's own model" in note else ""
    way = "position" if "matched by position" in note else way
    warned = " ?" if any(finding.code == "order-not-proved" for finding in report.findings) else ""
    return (way if right(situation, saved, live) else "swapped") + warned


def right(situation: Situation, saved: Live, live: Live) -> bool:
    """Whether every live parameter has the state of its own saved one, bit for bit, and no other."""
    return all(
        same_bits(live.state(layer), saved.state(origin) if (origin := situation.origin.get(layer, layer)) else {})
        for layer in "".join(situation.live_groups or (situation.live,))
    )


def plain(situation: Situation, carrier: str, path: Path) -> str:
    """What torch.load + load_state_dict does with the same file."""
    saved, live = carry(situation, carrier, path)
    try:
        tree = torch.load(path)
        live.model.load_state_dict(tree["model"], strict="missing" not in situation.modes)
        live.optimizer.load_state_dict(tree["optimizer"])
    except (RuntimeError, ValueError, KeyError):
        return "refused"
    return "position" if right(situation, saved, live) else "swapped"


def table() -> str:
    """All situations by carrier, and plain torch in the last column (a file with names)."""
    head = ["situation", *CARRIERS, "plain torch"]
    rows = [head]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        for situation in SITUATIONS:
            found = [verdict(situation, carrier, path) for carrier in CARRIERS]
            rows.append([situation.name, *found, plain(situation, "param_names", path)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


LEGEND = """
name      every state went to the parameter of that name
position  by position, proved by shapes or by the order in which the file's model lists its parameters
file      by the order in which the file's model lists its parameters
?         nothing proves it, and the report says so
swapped   a parameter has the state of another
refused   an error that names what differs; nothing was changed
"""

if __name__ == "__main__":
    print(table())
    print(LEGEND)
