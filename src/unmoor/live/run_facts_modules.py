"""Facts of live modules: where each tensor is, by canonical name, and whether their code moves it. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from unmoor.values.run_facts import GeneratorFact, ModelFacts, ModuleFacts, TensorFact

from .devices import tag
from .run_facts_code import Reading, argument_names, read_forward, reads_name
from .run_facts_wrappers import ground_of, is_hooked, wrapper_facts
from .wrappers import Place, unwrap, walk

__all__ = ["attribute_generators", "held_tensors", "model_facts", "reached", "tensor_fact"]

_OWN: Final = frozenset(vars(nn.Module()))
_DEPTH: Final = 3
_MEMBERS: Final = 64


def tensor_fact(name: str, tensor: torch.Tensor, kind: str, *, grade: str = "", at: str = "") -> TensorFact:
    """One tensor as a value. Reads no data, so it waits for no device."""
    lazy = isinstance(tensor, UninitializedTensorMixin)
    return TensorFact(
        name=name,
        device=tag(tensor.device),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=() if lazy else (-1,) if tensor.is_nested else tuple(tensor.shape),
        key=id(tensor),
        kind=kind,
        trains=tensor.requires_grad,
        lazy=lazy,
        grade=grade,
        at=at,
    )


def model_facts(label: str, at: str, module: nn.Module) -> ModelFacts:
    """A module with all that is in it, wrappers left out of the names."""
    inner, _ = unwrap(module)
    ground = ground_of(module)
    reading = read_forward(inner)
    arguments, any_name = argument_names(inner)
    moved = reading.moved | (frozenset({"*"}) if reading.opaque or inner._forward_pre_hooks else frozenset())
    places = list(walk(module))
    flat = any(type(w).__name__ == "FullyShardedDataParallel" for place in places for w in place.wrappers)
    known = None if flat else frozenset(id(t) for place in places for t in _registered(place.module))
    return ModelFacts(
        label=label,
        at=at,
        class_name=type(inner).__name__,
        modules=tuple(_module(place, at, known) for place in places),
        wrappers=tuple(wrapper_facts(module, at)),
        compute=ground.compute,
        brings=ground.brings,
        arguments=arguments,
        moved=moved,
        any_name=any_name,
        casts=ground.casts,
        untied=tuple(_untied(inner)),
    )


def _registered(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from (t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None)


def _module(place: Place, at: str, known: frozenset[int] | None) -> ModuleFacts:
    """One module. `known` are the tensors registered anywhere; None where FSDP keeps views of them as attributes."""
    module = place.module
    reading = read_forward(module)
    own = reached(at, place.raw.rstrip("."))
    tensors = [tensor_fact(n, p, "parameter") for n, p in module._parameters.items() if p is not None]
    tensors += [tensor_fact(n, b, "buffer", at=f"{own}.{n}") for n, b in module._buffers.items() if b is not None]
    if known is not None:
        tensors += [fact for fact in _attributes(module, reading, own) if fact.key not in known]
    hooks = any(child._forward_pre_hooks or child._forward_hooks for child in module._modules.values() if child)
    return ModuleFacts(
        name=place.prefix.rstrip("."),
        class_name=type(module).__name__,
        tensors=tuple(tensors),
        container=getattr(type(module), "forward", None) in _NO_FORWARD and "forward" not in vars(module),
        moves=reading.moves or hooks,
        opaque=reading.opaque,
        hooked=is_hooked(module),
        at=own,
    )


_NO_FORWARD: Final = (nn.Module.forward, nn.ModuleList.forward, nn.ModuleDict.forward)


def reached(at: str, path: str) -> str:
    """Python that reaches a submodule: `model.layers[0].mask`."""
    for part in path.split(".") if path else ():
        at += f"[{part}]" if part.isdigit() else f".{part}" if part.isidentifier() else f".get_submodule({part!r})"
    return at


def _attributes(module: nn.Module, reading: Reading, at: str) -> Iterator[TensorFact]:
    """Tensors that a module keeps as plain attributes, which .to() leaves where they are."""
    hooks = module._forward_pre_hooks.values()
    made = {getattr(hook, name, None) for hook in hooks for name in ("name", "_tensor_name")}  # weight norm, pruning
    for name, value in vars(module).items():
        if name in _OWN or name in made or name.startswith("_hf") or isinstance(value, nn.Module):
            continue
        for path, tensor in held_tensors(name, value):
            yield tensor_fact(path, tensor, "attribute", grade=reads_name(reading, name), at=f"{at}.{path}")
        for path, tensor in _unregistered(name, value):
            yield tensor_fact(path, tensor, "unregistered", grade=reads_name(reading, name), at=f"{at}.{name}")


def _unregistered(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of modules in a plain list, tuple or dict, which are none of the model's."""
    if isinstance(value, Mapping | list | tuple) and len(value) <= _MEMBERS:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            if isinstance(item, nn.Module):
                for inner, tensor in (*item.named_parameters(), *item.named_buffers()):
                    yield f"{name}[{key!r}].{inner}", tensor


def held_tensors(name: str, value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a value or of a short container, by the Python that reaches them."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth > 0 and isinstance(value, Mapping | list | tuple) and len(value) <= _MEMBERS:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from held_tensors(f"{name}[{key!r}]", item, depth - 1)


def attribute_generators(model: ModelFacts, module: nn.Module, device: str) -> Iterator[GeneratorFact]:
    """Generators that the modules keep and that their forward reads without moving tensors."""
    for place in walk(module):
        reading = read_forward(place.module)
        for name, value in vars(place.module).items():
            if isinstance(value, torch.Generator) and reads_name(reading, name) == "used":
                own = f"{reached(model.at, place.raw.rstrip('.'))}.{name}"
                where = ".".join(part for part in (model.label, place.prefix.rstrip("."), name) if part)
                yield GeneratorFact(where, tag(value.device), device.partition(":")[0], own)


def _untied(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Names of weights that the model itself says are one, and that are two now (transformers' way of saying so)."""
    config = getattr(module, "config", None)
    ties = getattr(module, "_tied_weights_keys", None)
    if not ties or not getattr(config, "tie_word_embeddings", False):
        return
    names = {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}
    if isinstance(ties, Mapping):
        pairs = [(str(one), str(other)) for one, other in ties.items()]
    else:
        source = _embedding_name(module)
        pairs = [(str(name), source) for name in ties if source]
    for one, other in pairs:
        if one in names and other in names and names[one] != names[other]:
            yield one, other


def _embedding_name(module: nn.Module) -> str:
    get = getattr(module, "get_input_embeddings", None)
    weight = getattr(get(), "weight", None) if callable(get) else None
    named = module.named_parameters(remove_duplicate=False)
    return next((name for name, p in named if p is weight), "") if weight is not None else ""
