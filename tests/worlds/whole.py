"""The referee of the matrix of worlds: a run gathered whole, and filled again, by torch's own calls alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from .layouts import Network, Run

__all__ = ["differences", "fill", "gather"]

WHOLE = StateDictOptions(full_state_dict=True)


def gather(run: Run) -> dict[str, Any]:
    """All of a run but its buffers and random streams, as plain whole tensors on every rank, state by name."""
    model, optimizer = get_state_dict(run.model, run.optimizer, options=WHOLE)
    buffers = run.buffers()
    return {
        "model": {name: value for name, value in model.items() if name not in buffers},
        "optimizer": optimizer,
        "scheduler": run.scheduler.state_dict(),
        "scaler": run.scaler.state_dict(),
        "step": run.step,
    }


def fill(run: Run, whole: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]) -> None:
    """Put what `gather` gave into a run of any layout, and a rank's buffers."""
    if run.layout.name == "FSDP2+TP 2x2":
        _fill_strided(run, whole, buffers)
    else:
        set_state_dict(
            run.model,
            run.optimizer,
            model_state_dict={**whole["model"], **buffers},
            optim_state_dict=whole["optimizer"],
            options=WHOLE,
        )
    run.scheduler.load_state_dict(whole["scheduler"])
    run.scaler.load_state_dict(whole["scaler"])
    run.step = whole["step"]


@torch.no_grad()
def _fill_strided(run: Run, whole: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]) -> None:
    """The same where torch's set_state_dict cannot: it fails on tensors that two meshes cut along one dimension.

    Each set of values is put into a whole model, which is then wrapped as the run's own is: that cuts them as it does.
    """
    for name, buffer in run.buffers().items():
        buffer.copy_(buffers[name])
    for name, param in _wrapped(run, whole["model"]).items():
        run.model.get_parameter(name).copy_(param)
    states = whole["optimizer"]["state"]
    for key in ("exp_avg", "exp_avg_sq"):
        for name, value in _wrapped(run, {name: state[key] for name, state in states.items()}).items():
            param = run.model.get_parameter(name)
            run.optimizer.state[param][key] = value.detach().clone()
            run.optimizer.state[param]["step"] = states[name]["step"].clone()
    for live, saved in zip(run.optimizer.param_groups, whole["optimizer"]["param_groups"], strict=True):
        live.update({key: value for key, value in saved.items() if key != "params"})


def _wrapped(run: Run, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    model = Network()
    model.load_state_dict(values, strict=False)
    return dict(run.layout.wrap(model).named_parameters())


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Where two trees differ, by a bit of a tensor, a dtype, a key or a value."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            yield f"{place}: {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}"
        elif not torch.equal(one, other):
            yield f"{place}: by {float((one - other).abs().max()):.1e}"
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in one.keys() | other.keys():
            if key in one and key in other:
                yield from differences(one[key], other[key], f"{place}.{key}" if place else str(key))
            else:
                yield f"{place}.{key}: only in {'this' if key in one else 'the reference'}"
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}.{index}")
    elif type(one) is not type(other) or one != other:
        yield f"{place}: {one!r}, not {other!r}"[:200]
