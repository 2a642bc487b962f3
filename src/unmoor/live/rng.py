"""Random number streams of this process: python, numpy, torch's CPU and every accelerator, and the user's own.

What is captured is plain values and CPU ByteTensors. Restoring is all or nothing: every state is checked by putting
it into a scratch generator first, then all are set.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch

from unmoor.errors import MismatchError, UsageError
from unmoor.values.target import Stream

from .derived import can_derive, derived
from .devices import available, device_module, own_index

__all__ = [
    "Chosen",
    "capture",
    "device_state",
    "generator_kind",
    "generator_setter",
    "generator_state",
    "host_setters",
    "host_states",
    "is_generator",
    "setters",
    "streams",
]

_TORCH_CPU: Final = "torch"

Setter = Callable[[], None]
"""Puts one stream into one state, which was tried before."""


def _numpy() -> Any:
    return sys.modules.get("numpy")


def _accelerators() -> Iterator[tuple[str, Any, int]]:
    for kind, count in available().items():
        module = device_module(kind)
        if kind not in ("cpu", "meta") and module is not None and hasattr(module, "get_rng_state"):
            yield kind, module, count


def generator_kind(value: Any) -> str:
    """torch, numpy, numpy-legacy or python for a generator object that can be carried; UsageError for others."""
    if isinstance(value, torch.Generator):
        return "torch"
    if isinstance(value, random.Random):
        return "python"
    numpy = _numpy()
    if numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.BitGenerator):
        return "numpy"
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return "numpy-legacy"
    raise UsageError(
        f"rng= was given a {type(value).__module__}.{type(value).__qualname__}, which is no generator",
        remedy="Pass torch.Generator, numpy Generator, BitGenerator or RandomState, or random.Random objects by name.",
    )


def is_generator(value: Any) -> bool:
    """Whether a value is a generator object that can be carried."""
    try:
        generator_kind(value)
    except UsageError:
        return False
    return True


def streams(generators: Mapping[str, Any], asked: Collection[str] = ()) -> tuple[Stream, ...]:
    """Every stream of this process, and the named generators; `asked` are the names that the caller gave."""
    found = [Stream("torch-cpu", "cpu")]
    found += [Stream("torch-device", kind, n, own=own_index(kind)) for kind, _, n in _accelerators()]
    if _numpy() is not None:
        found.append(Stream("numpy", "numpy"))
    found.append(Stream("python", "python"))
    found += [Stream("generator", n, 1, generator_kind(g), n in asked) for n, g in generators.items()]
    return tuple(found if can_derive() else (replace(stream, derives=False) for stream in found))


def capture(generators: Mapping[str, Any]) -> dict[str, Any]:
    """The states of all streams, as they stand now.

    Keys: torch (CPU ByteTensor), devices (device type -> list of ByteTensors by index), current (device type -> index
    of the device that this process works on), numpy (numpy's legacy global state), python (random.getstate()),
    generators (name -> {flavour, state}). numpy arrays become CPU tensors.
    """
    host = host_states()
    states: dict[str, Any] = {_TORCH_CPU: host.pop(_TORCH_CPU)}
    devices = {kind: [device_state(module, kind, i) for i in range(n)] for kind, module, n in _accelerators()}
    if devices:
        states["devices"] = devices
        states["current"] = {kind: own_index(kind) for kind in devices}
    states |= host
    if generators:
        states["generators"] = {name: generator_state(g) for name, g in generators.items()}
    return states


def host_states() -> dict[str, Any]:
    """The states of the process's streams that live on the host: torch's of the CPU, numpy's and python's."""
    states: dict[str, Any] = {_TORCH_CPU: torch.get_rng_state()}
    numpy = _numpy()
    if numpy is not None:
        states["numpy"] = _plain(numpy.random.get_state(legacy=False))
    return {**states, "python": random.getstate()}


def host_setters(states: Mapping[str, Any]) -> list[Setter]:
    """One call for each of the states that `host_states` gave; a stream that this process lacks is left out."""
    kinds = {_TORCH_CPU: "torch-cpu", "numpy": "numpy", "python": "python"}
    here = {key: state for key, state in states.items() if key != "numpy" or _numpy() is not None}
    return setters([Chosen(kinds[key], key, 0, state) for key, state in here.items()], {})


def device_state(module: Any, kind: str, index: int) -> torch.Tensor:
    """The state of the stream of one device, a CPU ByteTensor; `module` serves its type."""
    state = module.get_rng_state() if kind == "mps" else module.get_rng_state(index)
    return torch.as_tensor(state).cpu()


def generator_state(generator: Any) -> dict[str, Any]:
    """The state of a generator as plain values, with what kind of generator it is."""
    kind = generator_kind(generator)
    if kind == "torch":
        state: Any = generator.get_state().cpu()
    elif kind == "python":
        state = generator.getstate()
    elif kind == "numpy":
        state = _plain(getattr(generator, "bit_generator", generator).state)
    else:
        state = _plain(generator.get_state(legacy=False))
    return {"flavour": kind, "state": state}


def _plain(value: Any) -> Any:
    """Numpy's state without numpy: arrays as CPU tensors of the same numbers, scalars as Python numbers."""
    numpy = _numpy()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, numpy.ndarray):
        return torch.from_numpy(value.astype("int64", copy=True) if value.dtype == "uint32" else value.copy())
    return value.item() if isinstance(value, numpy.generic) else value


class Chosen(NamedTuple):
    """A state to set: of which stream, on the device of which index, and under which key it is to be derived, if so."""

    kind: str
    name: str
    where: int
    state: Any
    spawn_key: tuple[int, ...] = ()


def setters(chosen: Iterable[Chosen], generators: Mapping[str, Any]) -> list[Setter]:
    """One call for each state to set, after every state was tried on a scratch generator.

    Raises MismatchError listing every state that does not fit; then nothing was changed.
    """
    calls: list[Setter] = []
    faults: list[str] = []
    for one in chosen:
        kind, name, where, state, key = one
        try:
            if key:
                _setter(kind, name, where, state, generators)
                state = derived(state, key, kind=kind, device=_device(kind, name, where), like=generators.get(name))
            calls.append(_setter(kind, name, where, state, generators))
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            faults.append(f"{kind} {name}: {' '.join(str(error).split())[:200]}")
    if faults:
        raise MismatchError(
            "the saved state of a random number stream does not fit this process; no stream was changed",
            details=tuple(faults),
            remedy="Pass rng=False to leave all streams alone.",
        )
    return calls


def _setter(kind: str, name: str, index: int, state: Any, generators: Mapping[str, Any]) -> Setter:
    if kind == "torch-cpu":
        torch.Generator().set_state(state)
        return lambda: torch.set_rng_state(state)
    if kind == "torch-device":
        return _device_setter(name, index, state)
    if kind == "numpy":
        return _numpy_setter(_numpy().random, state)
    if kind == "python":
        value = _python_state(state)
        random.Random(0).setstate(value)
        return lambda: random.setstate(value)
    return generator_setter(generators[name], state)


def _device(kind: str, name: str, index: int) -> torch.device:
    """The device that a stream belongs to."""
    if kind != "torch-device":
        return torch.device("cpu")
    return torch.device(name) if name == "mps" else torch.device(name, index)


def _device_setter(kind: str, index: int, state: Any) -> Setter:
    module = device_module(kind)
    device = _device("torch-device", kind, index)
    torch.Generator(device=device).set_state(state)
    return lambda: module.set_rng_state(state) if kind == "mps" else module.set_rng_state(state, device)


def _python_state(state: Any) -> tuple[Any, ...]:
    version, internal, gauss = state
    return version, tuple(internal), gauss


def _numpy_legacy(state: Any) -> dict[str, Any]:
    """Numpy's legacy state in its dict form, from that form or from the older tuple."""
    numpy = _numpy()
    if not isinstance(state, dict):
        name, key, pos, has_gauss, gauss = state
        state = {"bit_generator": name, "state": {"key": key, "pos": pos}, "has_gauss": has_gauss, "gauss": gauss}
    inner = {**state["state"], "key": numpy.asarray(state["state"]["key"]).astype("uint32")}
    return {**state, "state": {**inner, "pos": int(inner["pos"])}}


def _numpy_setter(target: Any, state: Any) -> Setter:
    value = _numpy_legacy(state)
    _numpy().random.RandomState(0).set_state(value)
    return lambda: target.set_state(value)


def generator_setter(generator: Any, saved: Any) -> Setter:
    """What puts a generator into a state that `generator_state` gave; ValueError for one of another kind."""
    kind, state = generator_kind(generator), saved["state"]
    if saved["flavour"] != kind:
        raise ValueError(f"a {saved['flavour']} generator was saved under this name, a {kind} generator was given")
    if kind == "torch":
        torch.Generator(device=generator.device).set_state(state)
        return lambda: generator.set_state(state)
    if kind == "python":
        value = _python_state(state)
        random.Random(0).setstate(value)
        return lambda: generator.setstate(value)
    if kind == "numpy-legacy":
        return _numpy_setter(generator, state)
    return _bit_setter(getattr(generator, "bit_generator", generator), state)


def _bit_setter(bits: Any, state: dict[str, Any]) -> Setter:
    saved, live = state.get("bit_generator"), bits.state.get("bit_generator")
    if saved != live:
        raise ValueError(f"the state of a {saved} was saved under this name, a {live} was given")
    value = _unplain(state, bits.state)
    type(bits)(0).state = value

    def apply() -> None:
        bits.state = value

    return apply


def _unplain(saved: Any, like: Any) -> Any:
    """A plain state in the types that the live state has: arrays of its dtype where the file has tensors."""
    numpy = _numpy()
    if isinstance(like, dict):
        return {key: _unplain(saved[key], item) for key, item in like.items()}
    if isinstance(like, numpy.ndarray):
        return numpy.asarray(saved).astype(like.dtype)
    return saved
