"""Fact: the switches of the file decide how plain torch computes after a load. Here the live optimizer's do."""

from pathlib import Path

import torch
from torch import nn

import unmoor


def trained(*, fused: bool) -> tuple[nn.Module, torch.optim.Adam]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_f8_a_fused_file_does_not_turn_the_live_optimizer_fused(tmp_path: Path) -> None:
    """F8: torch flips a plain optimizer to fused=True from the file; unmoor keeps the live switch and says so."""
    model, optimizer = trained(fused=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "fused.pt")

    _, plain = trained(fused=False)
    plain.load_state_dict(torch.load(tmp_path / "fused.pt")["optimizer"])
    assert plain.param_groups[0]["fused"] is True

    live_model, live = trained(fused=False)
    report = unmoor.restore(tmp_path / "fused.pt", model=live_model, optimizer=live)
    assert live.param_groups[0]["fused"] is False
    assert [(c.name, c.before, c.after) for c in report.plan.kept] == [("fused", "True", "False")]
    assert "fused=False" in str(report)
    assert all(state["step"].device.type == "cpu" and state["step"] == 1 for state in live.state.values())


def test_f8_the_live_switch_decides_where_step_lives(tmp_path: Path, sim) -> None:
    """F8: torch places `step` by the flags of the file; unmoor by the live ones: the CPU, or beside its parameter."""
    model, optimizer = trained(fused=False)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "plain.pt")
    for capturable, home in ((True, "sim"), (False, "cpu")):
        live = nn.Linear(3, 2).to("sim:1")
        adam = torch.optim.Adam(live.parameters(), capturable=capturable)
        unmoor.restore(tmp_path / "plain.pt", model=live, optimizer=adam)
        assert {state["step"].device.type for state in adam.state.values()} == {home}
        assert adam.param_groups[0]["capturable"] is capturable
