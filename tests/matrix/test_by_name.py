"""Model and groups change, and state follows names: the table of situations, cell by cell."""

from __future__ import annotations

from pathlib import Path

import pytest

import unmoor

from .by_name import CARRIERS, SITUATIONS, Situation, carry, right, verdict

CELLS = [(s, carrier, s.expected[i]) for s in SITUATIONS for i, carrier in enumerate(CARRIERS)]
SETTLED = [(s, carrier) for s, carrier, expected in CELLS if expected in ("name", "file", "position")]


def _label(value: object) -> str:
    return value.name if isinstance(value, Situation) else str(value)


@pytest.mark.parametrize(("situation", "carrier", "expected"), CELLS, ids=_label)
def test_every_state_goes_where_its_name_says_or_is_refused(
    tmp_path: Path, situation: Situation, carrier: str, expected: str
) -> None:
    """Law 6: names, not positions; without names an order that is proved, a warning where none is, or an error."""
    assert verdict(situation, carrier, tmp_path / "run.pt") == expected


@pytest.mark.parametrize(("situation", "carrier"), SETTLED, ids=_label)
def test_each_group_has_the_options_of_its_own_parameters(tmp_path: Path, situation: Situation, carrier: str) -> None:
    """A live group takes the options of the saved groups that its parameters were in; a new one keeps its own."""
    saved, live = carry(situation, carrier, tmp_path / "run.pt")
    report = unmoor.restore(
        tmp_path / "run.pt", model=live.model, optimizer=live.optimizer, rng=False, **situation.modes
    )
    assert tuple(group["lr"] for group in live.optimizer.param_groups) == situation.rates
    aside = [change.name for change in report.not_restored if change.before == "frozen: state kept aside"]
    assert aside == [f"{layer}.weight" for layer in situation.aside]
    assert right(situation, saved, live)
