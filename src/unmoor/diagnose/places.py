"""How findings of a run call things and what Python fixes them: places, lists of names, lines of code. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unmoor.values.run_facts import LeafFact, ModelFacts, OptimizerFacts, TensorFact

__all__ = ["assignment", "full_name", "home_of", "kind_of", "others", "param_place", "placed", "reload_line"]


def others(names: Sequence[str]) -> str:
    """The first name and how many more there are."""
    more = len(names) - 1
    return names[0] + (f" and {more:,} {'other' if more == 1 else 'others'}" if more > 0 else "")


def full_name(*parts: str) -> str:
    """Parts of a name joined by dots, empty ones left out."""
    return ".".join(part for part in parts if part)


def param_place(optimizer: OptimizerFacts, group: int, index: int, name: str) -> str:
    """`optimizer group 0, parameter 3 (decoder.2.weight)`."""
    return f"{optimizer.label} group {group}, parameter {index}" + (f" ({name})" if name else "")


def kind_of(device: str) -> str:
    """The type in a device tag."""
    return device.partition(":")[0]


def placed(tensors: Iterable[TensorFact]) -> list[TensorFact]:
    """The tensors whose device matters: those with dimensions and with data, or with a shape still to come."""
    return [t for t in tensors if not t.scalar and t.device != "meta"]


def home_of(model: ModelFacts) -> str:
    """The device that a model belongs on: the one with most of its elements, of accelerators if any of it is there.

    Nobody brings a part of a model to an accelerator unawares; what stays on the CPU was forgotten.
    """
    sizes: dict[str, int] = {}
    own = placed(model.tensors("parameter")) or placed(model.tensors("buffer"))
    for tensor in own:
        sizes[tensor.device] = sizes.get(tensor.device, 0) + _numel(tensor)
    fast = {device: size for device, size in sizes.items() if device != "cpu"} or sizes
    return max(fast, key=fast.__getitem__) if fast else ""


def _numel(tensor: TensorFact) -> int:
    number = 1
    for size in tensor.shape:
        number *= size
    return number


def reload_line(optimizer: OptimizerFacts) -> str:
    """Python that puts an optimizer's state beside its parameters, in their dtype."""
    return f"{optimizer.at}.load_state_dict({optimizer.at}.state_dict())"


def assignment(root: str, leaf: LeafFact, change: str) -> str:
    """Python that changes one tensor of a batch: `batch['y'] = batch['y'].long()`.

    Tuples are made anew; deeper ones that cannot be assigned into are left to the reader.
    """
    place = leaf.tensor.name
    if not leaf.path:
        return f"{root} = {root}{change}"
    kind, key = leaf.path[-1]
    above = place[: len(place) - len(f".{key}" if kind in ("named", "object") else f"[{key!r}]")]
    if kind == "tuple" and isinstance(key, int):
        before = f"*{above}[:{key}], " if key else ""
        return f"{above} = ({before}{place}{change}, *{above}[{key + 1}:])"
    if kind == "named":
        return f"{above} = {above}._replace({key}={place}{change})"
    return f"{place} = {place}{change}"
