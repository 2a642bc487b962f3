"""Every kind of model saved, every kind restored: equal, equal under other names, or refused with nothing changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import unmoor
from tests.cases.files import refused
from tests.runs.training import equal
from unmoor.values.beside import NAMES

from .carriers import CARRIERS
from .report import table
from .wrapper_kinds import KINDS, STRUCTURES, Kind, Net, build, quiet, world_of_one
from .wrapper_runs import WrappedRun, start
from .wrappers import Saved, cell, expected, save, spelled

UNMOOR = CARRIERS["unmoor"]
WRAPPERS = ("DataParallel", "DDP", "compile", "compile of the head", "AC of the head", "compile(AC)")
"""Wrappers that are put around every structure; FSDP takes parametrized modules in its own way only."""


def _rule(wrapper: str, structure: str) -> str:
    """Activation checkpointing runs the forward pass twice, and spectral_norm takes a step of its own in each."""
    return "recomputed" if "AC" in wrapper and structure.startswith("spectral_norm") else ""


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    """A process group of this process alone."""
    with world_of_one():
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The saved run of a kind, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("kinds")
    made: dict[str, Saved] = {}

    def get(kind: Kind) -> Saved:
        if kind.name not in made:
            made[kind.name] = save(kind, folder, UNMOOR)
        return made[kind.name]

    return get


CELLS = [(one, other) for one in KINDS.values() for other in KINDS.values()]


@pytest.mark.parametrize(("saved", "restored"), CELLS, ids=[f"{a.name} -> {b.name}" for a, b in CELLS])
def test_every_kind_is_restored_into_every_kind_or_refused(files: Any, saved: Kind, restored: Kind) -> None:
    """Laws 2, 5 and 8: the same model comes back whatever wraps it, another one is refused and nothing changes."""
    outcome = cell(files(saved), restored, UNMOOR)
    wish = expected(saved, restored)
    assert outcome.verdict == ("illegal" if wish == "refused" else "equal"), outcome.reason


MIXED = [
    replace(KINDS[wrapper], name=f"{wrapper} of {structure}", structure=structure, rule=_rule(wrapper, structure))
    for structure in STRUCTURES
    for wrapper in WRAPPERS
    if structure not in ("plain", "user's module")
]


@pytest.mark.parametrize("wrapped", MIXED, ids=lambda k: k.name)
@pytest.mark.parametrize("way", ["out of the wrapper", "into the wrapper"])
def test_a_changed_model_goes_in_and_out_of_wrappers(tmp_path: Path, wrapped: Kind, way: str) -> None:
    """Law 8: parametrized, pruned and normed models are the same with and without what wraps them."""
    bare = replace(KINDS["plain"], name=wrapped.structure, structure=wrapped.structure)
    one, other = (wrapped, bare) if way == "out of the wrapper" else (bare, wrapped)
    outcome = cell(save(one, tmp_path, UNMOOR), other, UNMOOR)
    assert outcome.verdict == "equal", outcome.reason


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)
def test_what_is_written_is_what_torch_has_for_the_model_without_wrappers(files: Any, kind: Kind) -> None:
    """Names, `_metadata` and the optimizer's `param_names` are the bare model's, and torch's own load takes them."""
    written = torch.load(files(kind).path)
    bare = replace(kind, wrap=KINDS["AveragedModel"].wrap if kind.structure == "averaged" else KINDS["plain"].wrap)
    model, _ = build(bare, seed=3)
    with quiet():
        assert dict(written["model"]._metadata) == dict(model.state_dict()._metadata)
        assert list(written["model"]) == list(model.state_dict())
        model.load_state_dict(written["model"])
    assert equal(dict(model.state_dict()), files(kind).state["model"])
    assert written["optimizer"][NAMES] == [[name for name, _ in model.named_parameters()]]
    assert {type(v) for s in written["optimizer"]["state"].values() for v in s.values()} == {torch.Tensor}


@pytest.mark.parametrize("name", ["DDP", "compile", "compile(DDP)", "AC(compile)", "DataParallel"])
@pytest.mark.parametrize("first", [True, False], ids=["built before wrapping", "built after"])
def test_an_optimizer_may_be_built_before_or_after_the_model_is_wrapped(tmp_path: Path, name: str, first: bool) -> None:
    """Law 6: canonical names are those of the parameters, wherever the optimizer got them."""
    run = start(KINDS[name], optimizer_first=first).train(2)
    unmoor.save(tmp_path / "a.pt", **run.roles)
    names = torch.load(tmp_path / "a.pt")["optimizer"][NAMES]
    assert names == [[name for name, _ in Net().named_parameters()]]
    other = start(KINDS[name], 5, optimizer_first=not first)
    unmoor.restore(tmp_path / "a.pt", **other.roles)
    assert equal(other.state(), run.state())


def test_the_two_weight_norms_hold_the_same_numbers_and_the_report_says_what_was_renamed(tmp_path: Path) -> None:
    """Law 9: weight_g and weight_v of the old one are original0 and original1 of the new one, told as renamed."""
    run = start(KINDS["weight_norm old"]).train(2)
    unmoor.save(tmp_path / "old.pt", **run.roles)
    new = start(KINDS["weight_norm"], 5)
    report = unmoor.restore(tmp_path / "old.pt", **new.roles)
    assert {(c.before, c.after) for c in report.renamed if c.label == "model"} == {
        ("head.weight_g", "head.parametrizations.weight.original0"),
        ("head.weight_v", "head.parametrizations.weight.original1"),
    }
    assert "torch.nn.utils.weight_norm as the live model spells it" in " ".join(str(report).split())
    assert equal(new.state(), spelled(run.state(), run.kind, new.kind))


def test_names_that_only_look_like_weight_norm_are_not_taken_for_it(tmp_path: Path) -> None:
    """Law 8: the live side is told by class; a user's parametrization with two originals gets nothing of the sort."""

    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * b

        def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.ones(weight.shape[0], 1), weight

    run = start(KINDS["weight_norm old"])
    unmoor.save(tmp_path / "old.pt", model=run.model)
    net = Net()
    nn.utils.parametrize.register_parametrization(net.head, "weight", Two(), unsafe=True)
    with refused(unmoor.MismatchError, net) as caught:
        unmoor.restore(tmp_path / "old.pt", model=net)
    assert "in the file kept by torch.nn.utils.weight_norm" in str(caught.value)


@pytest.mark.parametrize(
    ("saved", "live", "words"),
    [
        ("pruned", "plain", ["head.weight", "kept by torch.nn.utils.prune", "plain", "torch.nn.utils.prune.remove"]),
        ("plain", "pruned", ["head.weight", "plain", "kept by torch.nn.utils.prune", "restore into the plain model"]),
        ("weight_norm", "plain", ["parametrizations.weight_norm", "remove_parametrizations(module, \"weight\")"]),
        ("spectral_norm old", "spectral_norm", ["torch.nn.utils.spectral_norm", "parametrizations.spectral_norm"]),
        ("lora", "plain", ["kept by torch.nn.utils.parametrize", "register_parametrization"]),
        ("AveragedModel", "plain", ["AveragedModel (n_averaged, module.*)", "ema=", "rename={'module.': ''}"]),
        ("plain", "AveragedModel", ["AveragedModel", "plain model", "model=averaged.module"]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
@pytest.mark.parametrize("wrap", ["plain", "DDP"])
def test_another_form_is_refused_with_both_sides_and_the_remedy(
    tmp_path: Path, saved: str, live: str, words: list[str], wrap: str
) -> None:
    """Law 14: the error names the tensor, how the file and the live model keep it, and what to call."""
    kind = KINDS[saved]
    model, _ = build(replace(kind, wrap=lambda net: KINDS[wrap].wrap(kind.wrap(net))), 0)
    with quiet():
        torch.save(model.state_dict(), tmp_path / "theirs.pt")
    other = start(KINDS[live], 5)
    with refused(unmoor.MismatchError, other.model) as caught:
        unmoor.restore(tmp_path / "theirs.pt", model=other.model)
    text = str(caught.value)
    assert all(word in text for word in words if wrap == "plain" or "module." not in word), text


def test_averages_become_weights_only_when_asked(tmp_path: Path) -> None:
    """Law 9: rename= or at= takes the averages of a file for the weights of a model."""
    averaged = AveragedModel(Net())
    unmoor.save(tmp_path / "ema.pt", ema=averaged)
    for call in ({"rename": {"module.": ""}, "unexpected": "ignore"}, {}):
        net = Net()
        unmoor.restore(tmp_path / "ema.pt", model=net, at={"model": "ema"}, **call)
        assert equal(dict(net.state_dict()), dict(averaged.module.state_dict()))


@pytest.mark.parametrize("options", [{}, {"use_buffers": True}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}], ids=list)
def test_an_average_beside_its_model_goes_on_as_it_would_have(tmp_path: Path, options: dict[str, Any]) -> None:
    """Law 5: model=, optimizer= and ema= of one run come back together, the count of averages too."""

    def begin(seed: int) -> tuple[Any, Any]:
        run = start(KINDS["plain"], seed)
        return run, AveragedModel(run.model, **options)

    def go_on(run: Any, averaged: Any) -> None:
        for _ in range(3):
            run.train(1)
            averaged.update_parameters(run.model)

    run, averaged = begin(0)
    go_on(run, averaged)
    unmoor.save(tmp_path / "a.pt", **run.roles, ema=averaged)
    other, twin = begin(5)
    unmoor.restore(tmp_path / "a.pt", **other.roles, ema=twin)
    other.step = run.step
    go_on(run, averaged)
    go_on(other, twin)
    assert equal(other.state(), run.state())
    assert equal(dict(twin.state_dict()), dict(averaged.state_dict()))
    assert int(twin.n_averaged) == 6


def _flat(seed: int, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    with quiet():
        model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=False)
    return model, torch.optim.Adam(model.parameters(), **options)


def test_a_flat_parameter_takes_state_for_all_it_holds_or_for_none(tmp_path: Path) -> None:
    """Law 2: where the file has state for a part of a FlatParameter, or counters that differ, nothing is touched."""
    run = start(KINDS["plain"]).train(2)
    tree = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    tree["optimizer"]["state"] = dict(tree["optimizer"]["state"])
    model, optimizer = _flat(5)
    tree["optimizer"]["state"][2] = {**tree["optimizer"]["state"][2], "step": torch.tensor(9.0)}
    torch.save(tree, tmp_path / "counters.pt")
    with refused(unmoor.MismatchError, optimizer) as caught:
        unmoor.restore(tmp_path / "counters.pt", model=model, optimizer=optimizer)
    assert "use_orig_params=True" in str(caught.value)
    del tree["optimizer"]["state"][2]
    torch.save(tree, tmp_path / "part.pt")
    with refused(unmoor.MismatchError, optimizer) as caught:
        unmoor.restore(tmp_path / "part.pt", model=model, optimizer=optimizer)
    assert "one FlatParameter holds" in str(caught.value)
    assert "no state for norm.weight" in str(caught.value)


def test_state_that_cannot_be_cut_out_of_a_flat_parameter_is_refused(tmp_path: Path) -> None:
    """Law 9: row and column sums over a FlatParameter belong to no parameter in it; saving says so."""
    torch.manual_seed(0)
    model, _ = _flat(0)
    optimizer = torch.optim.Adafactor(model.parameters())
    with quiet():
        model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    state = next(iter(optimizer.state.values()))
    if any(t.dim() and t.shape != next(model.parameters()).shape for t in state.values()):
        with pytest.raises(unmoor.UsageError, match="use_orig_params=True"):
            unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    else:
        unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)


SHARDED = [
    (make, saved, live)
    for make in (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adafactor)
    for saved in ("plain", "fully_shard", "FSDP1")
    for live in ("plain", "fully_shard", "FSDP1")
    if make is not torch.optim.Adafactor or "fully_shard" not in (saved, live)
]
"""Adafactor takes no step over DTensors in torch itself."""


@pytest.mark.parametrize(("make", "saved", "live"), SHARDED)
def test_optimizers_over_sharded_parameters_keep_their_state(tmp_path: Path, make: Any, saved: str, live: str) -> None:
    """Law 5: moments, sums over rows and counters come back in the form of its parameter, and the next step is too."""

    def begin(name: str, seed: int) -> WrappedRun:
        run = start(KINDS[name], seed)
        options = {"momentum": 0.9} if make is torch.optim.SGD else {}
        run.optimizer = make(list(run.model.parameters()), lr=0.05, foreach=False, **options)
        return run

    run = begin(saved, 0).train(2)
    unmoor.save(tmp_path / "a.pt", **run.roles)
    other = begin(live, 5)
    unmoor.restore(tmp_path / "a.pt", **other.roles)
    other.step = run.step
    assert equal(other.state(), run.state())
    assert equal(other.train(2).state(), run.train(2).state())


def test_a_model_that_was_only_evaluated_is_sharded_again_before_it_is_read(tmp_path: Path) -> None:
    """After a forward pass alone fully_shard leaves whole parameters in the model; the file has them all the same."""
    run = start(KINDS["fully_shard"]).train(1)
    run.model.eval()
    with torch.no_grad(), quiet():
        run.model(torch.ones(2, 4))
    unmoor.save(tmp_path / "a.pt", **run.roles)
    other = start(KINDS["plain"], 5)
    unmoor.restore(tmp_path / "a.pt", **other.roles)
    assert equal(other.state(), run.state())


MANY_RANKS = """
import torch, unmoor, warnings
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
warnings.simplefilter("ignore")
distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
whole = nn.Linear(4, 4)
unmoor.save("whole.pt", model=whole, group=None)
second = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))
first = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=False)
for model in (first, second):
    unmoor.restore("whole.pt", model=model, group=None)
print(torch.equal(second.weight.to_local(), whole.weight[2:]))
flat = torch.cat([whole.weight.flatten(), whole.bias])
print(torch.equal(next(first.parameters()), flat[10:]))
"""


def test_a_rank_of_many_fills_its_own_part_alone(tmp_path: Path) -> None:
    """Law 13: filling a rank's parts meets nobody: in a group that can pass nothing on, rank 1 of 2 gets its half."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_RANKS], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_the_table_has_a_row_for_every_group_and_no_cell_that_fails(files: Any) -> None:
    """The printed table counts every cell of the matrix once."""
    few = [KINDS[name] for name in ("plain", "DDP", "pruned")]
    found = [cell(files(a), b, UNMOOR) for a in few for b in few]
    text = table(found, head="saved")
    assert "plain" in text
    assert text.splitlines()[-1].split() == ["all", "2/2", "2/2", "1/1"]
