"""Every optimizer class of torch, under every legal combination of its switches, resumed on another device bit for bit.

`UNMOOR_MATRIX=full` takes the whole product; else each class takes the part that `cover` describes.
"""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch

import unmoor
from unmoor.values.optimizers import FAMILIES

from .carriers import PlainTorch, Unmoor
from .cover import pairs_of, pairwise
from .optimizer_runs import Setting
from .optimizer_switches import CLASSES, combinations
from .optimizers import COLUMNS, FULL, PAIRS, cells, crossings, judge, main, run, sample
from .report import Outcome, failures, table


@pytest.mark.parametrize("name", CLASSES)
def test_resumes_bit_for_bit(sim, tmp_path, name):
    """Laws 2 and 5: after the restore, and three steps later, all is as in the run that was never interrupted."""
    made = cells(name, CLASSES[name], combinations(CLASSES[name]))
    outcomes = list((judge if FULL else sample)(Unmoor(), made, tmp_path))
    assert not failures(outcomes)
    legal = {o.column for o in outcomes if o.verdict == "equal"}
    assert legal >= {"cpu > cpu", *(() if Setting.of(CLASSES[name]).sparse else COLUMNS)}


@pytest.mark.parametrize("name", CLASSES)
def test_the_switches_of_the_live_optimizer_decide(sim, tmp_path, name):
    """Law 7: saved under one way of computing a step, the state fits an optimizer that computes it another way."""
    outcomes = list((judge if FULL else sample)(Unmoor(), crossings(name, CLASSES[name]), tmp_path))
    assert not failures(outcomes)
    assert outcomes or "foreach" not in inspect.signature(CLASSES[name]).parameters


def test_every_class_of_torch_optim_is_in_the_matrix():
    """A class that torch adds is found by walking torch.optim, whatever is known of it here."""
    found = {c.__name__ for c in vars(torch.optim).values() if inspect.isclass(c)}
    bases = {"Optimizer"}
    assert (
        set(CLASSES)
        == {name for name in found if issubclass(getattr(torch.optim, name), torch.optim.Optimizer)} - bases
    )
    assert set(CLASSES) - {"AdamW"} <= set(FAMILIES)


class Novel(torch.optim.Optimizer):
    """A class that nothing here knows, with a switch of its own and state on the device."""

    def __init__(self, params, lr=0.1, inverted=False):
        super().__init__(params, {"lr": lr, "inverted": inverted})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["trace"] = state.get("trace", [torch.zeros_like(parameter)])[-1:] + [parameter.grad.clone()]
                    parameter.sub_(sum(state["trace"]), alpha=-group["lr"] if group["inverted"] else group["lr"])


def test_a_class_that_is_not_known_joins_with_its_defaults(sim, tmp_path):
    """A class that the table of options does not know runs with its defaults, in all situations and on all devices."""
    outcomes = list(judge(Unmoor(), cells("Novel", Novel, combinations(Novel)), tmp_path))
    assert not failures(outcomes)
    assert len([o for o in outcomes if o.verdict == "equal"]) == len(outcomes) > 50


class Forgetful(Unmoor):
    """Loses the moments of one parameter."""

    name = "forgetful"

    def restore(self, path, **objects):
        super().restore(path, **objects)
        optimizer = objects["optimizer"]
        optimizer.state.pop(optimizer.param_groups[0]["params"][0], None)


class Careless(Unmoor):
    """Leaves the random streams where they are."""

    name = "careless"

    def restore(self, path, **objects):
        unmoor.restore(path, **objects, rng=False)


@pytest.mark.parametrize(("carrier", "said"), [(Forgetful(), ".state: has"), (Careless(), ".streams")])
def test_the_matrix_sees_what_is_lost(sim, tmp_path, carrier, said):
    """A carrier that loses something is not called equal; the reason names it."""
    made = [cell for cell in cells("Adam", torch.optim.Adam, [{}]) if cell.case.situation == "stepped"]
    outcomes = list(judge(carrier, made, tmp_path))
    assert {o.verdict for o in outcomes} == {"differs"}
    assert all(said in o.reason for o in outcomes)


def test_plain_torch_is_measured_by_the_same_cells(sim, tmp_path):
    """Another carrier runs the same cells; torch's own recipe loses what the facts say that it loses."""
    made = list(cells("Adam", torch.optim.Adam, [{}]))
    outcomes = list(judge(PlainTorch(), made, tmp_path))
    assert [o for o in outcomes if o.column == "cpu > cpu" and o.verdict == "equal"]
    assert len({o.cell for o in outcomes}) == len(made)


def test_the_sample_meets_every_legal_pair_of_values():
    """Each pair of values of two axes that a legal cell has is in the sample, and the sample is a small part."""
    axes = {name: range(size) for name, size in zip("abcdef", (5, 2, 2, 7, 2, 5), strict=True)}
    cells = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    legal = lambda cell: not (cell["b"] == 1 and cell["f"] in (0, 3))
    ran = list(pairwise(cells, lambda cell: cell, lambda cell: cell, legal))
    meant = set().union(*(pairs_of(cell) for cell in cells if legal(cell)))
    assert set().union(*(pairs_of(cell) for cell in ran if legal(cell))) == meant
    assert len(ran) < len(cells) / 10
    assert sum(legal(cell) for cell in ran) < 2 * 5 * 7


def test_a_table_counts_legal_cells_and_fits_a_terminal(sim):
    """One row a class and one column a pair of devices, equal and all cells in each field, 80 columns wide."""
    outcomes = run(Unmoor(), full=False, classes=["Muon", "SparseAdam"])
    lines = table(outcomes, head="unmoor", columns=COLUMNS).splitlines()
    assert [line.split()[0] for line in lines] == ["unmoor", "Muon", "SparseAdam", "all"]
    assert max(map(len, lines)) <= 80
    assert len(PAIRS) == len(COLUMNS)
    assert table([Outcome("a", "x", "illegal"), Outcome("a", "y", "differs")], head="").splitlines()[1].split() == [
        "a",
        "-",
        "0/1",
    ]


def test_the_matrix_prints_itself(sim, capsys):
    """`python -m tests.matrix.optimizers` prints the table and what is not legal; its exit code tells the result."""
    assert main(["Muon", "--sample"]) == 0
    out = capsys.readouterr().out
    assert "Muon" in out
    assert "differs: none" in out
    assert main(["Adam", "--sample", "--carrier=torch.load + load_state_dict"]) == 1
    assert "not legal" in capsys.readouterr().out
