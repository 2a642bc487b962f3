"""The modules of a model as a tree: which devices lie below each, and where tensors of two devices meet. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from unmoor.values.run_facts import ModelFacts, ModuleFacts, TensorFact

from .places import home_of, placed

__all__ = ["Tree", "fed_from", "registered"]


def registered(module: ModuleFacts) -> list[TensorFact]:
    """The parameters and buffers of a module itself whose device matters."""
    return placed(t for t in module.tensors if t.kind in ("parameter", "buffer"))


class Tree:
    """The modules of a model by name, with the devices below each."""

    def __init__(self, model: ModelFacts) -> None:
        self.modules: dict[str, ModuleFacts] = {}
        for module in model.modules:
            self.modules.setdefault(module.name, module)
        self._devices: dict[str, set[str]] = {name: set() for name in self.modules}
        for module in model.modules:
            own = {tensor.device for tensor in registered(module)}
            for name in self._above(module.name):
                self._devices[name] |= own

    def devices(self, name: str = "") -> set[str]:
        """The devices of all that is in a module."""
        return self._devices[name]

    def _above(self, name: str) -> Iterator[str]:
        """A module and those that hold it, from the inside out."""
        while name:
            if name in self.modules:
                yield name
            name = name.rpartition(".")[0]
        yield ""

    def meeting(self, name: str, device: str) -> ModuleFacts:
        """The innermost module with a forward of its own, from `name` outwards, in which other devices are met."""
        for above in self._above(name):
            if self._devices[above] - {device} and not self.modules[above].container:
                return self.modules[above]
        return self.modules[""]


def fed_from(model: ModelFacts) -> set[str]:
    """The devices that what meets a model may be on: one, or several where its own code or hooks move tensors."""
    tree, home = Tree(model), home_of(model)
    if any(module.hooked for module in model.modules):
        return tree.devices()
    meetings = [tree.meeting(m.name, t.device) for m in model.modules for t in registered(m) if t.device != home]
    return tree.devices() if meetings and all(meeting.moves for meeting in meetings) else {home} - {""}
