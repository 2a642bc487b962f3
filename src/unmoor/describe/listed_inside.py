"""What lies in a folder that is one checkpoint, and all that is wrong with it, gathered to be said together."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from unmoor.errors import CorruptFile, FileError, UnmoorError
from unmoor.places import Entry, entries, join, name_of
from unmoor.values.text import listing

from .folder_index import NUMBERED
from .folder_plain import CHECKPOINTS, numbered_of, without_indexed
from .folder_tables import INDEX
from .glance import Glance, refuse_partial
from .glance_json import indexed

__all__ = ["MODELS", "SHARDED", "Faults", "Inside", "opened"]

MODELS: Final = re.compile(
    r"(?:model|adapter_model|pytorch_model(?:_fsdp)?)(?:_\d+)?\.(?:safetensors|bin)(?:\.index\.json)?"
)
"""Files of a model as transformers and accelerate write them."""

SHARDED: Final = re.compile(r"(?:pytorch_model_fsdp|optimizer)_\d+")
"""Folders of a sharded model or optimizer that these put beside their files."""

_MODEL_FOLDERS: Final = ("pytorch_model_fsdp", "global_step")
_PARTS: Final = (*CHECKPOINTS, ".json")
_SHOWN: Final = 3
_MOST: Final = 6
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Inside:
    """What lies in a folder: files and folders by name, and links that lead out of it, with what they lead to."""

    path: str
    files: Mapping[str, Entry]
    folders: Mapping[str, Entry]
    links: Mapping[str, str]

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file."""
        return {name: entry.nbytes for name, entry in self.files.items()}

    def without(self, names: Collection[str]) -> Inside:
        """The same without some of its names."""
        files = {name: entry for name, entry in self.files.items() if name not in names}
        folders = {name: entry for name, entry in self.folders.items() if name not in names}
        return Inside(self.path, files, folders, {n: goal for n, goal in self.links.items() if n not in names})

    def below(self, name: str) -> Inside:
        """What lies in one of its folders."""
        return opened(self.folders[name].path)


def opened(path: str) -> Inside:
    """What lies in a folder, links that lead out of it apart. Raises OSError where the system does."""
    found = entries(path)
    out = {entry.name: entry.link for entry in found if entry.link and name_of(entry.link) != entry.link}
    here = [entry for entry in found if entry.name not in out]
    return Inside(
        path,
        {entry.name: entry for entry in here if not entry.is_folder},
        {entry.name: entry for entry in here if entry.is_folder},
        out,
    )


class Faults:
    """Gathers what is wrong with a checkpoint in a folder, or with all of the folder, to say it together."""

    def __init__(self, inside: Inside, *, whole: bool = False) -> None:
        self.inside = inside
        self.lines: list[str] = []
        for name, target in inside.links.items() if whole else ():
            if name.endswith(_PARTS) or SHARDED.fullmatch(name):
                self.lines.append(f"{name} is a link that leads out, to {target}")

    def need(self, name: str) -> bool:
        """Whether a file is there; that it is not is a fault."""
        if name in self.inside.files:
            return True
        self.lines.append(f"{name} is missing")
        return False

    def tried(self, name: str, look: Callable[[], Any]) -> Any:
        """What `look` finds in the file of that name; what keeps it from that is a fault, and None."""
        try:
            return look()
        except (FileError, OSError) as error:
            path = join(self.inside.path, name)
            system = f" cannot be read: {getattr(error, 'strerror', None) or error}"
            said = error.headline.removeprefix(path) if isinstance(error, UnmoorError) else system
            self.lines.append(f"{name}{said}"[:_LONGEST])
        return None

    def model(self) -> None:
        """A file or folder with a model has to be there."""
        names = (*self.inside.files, *self.inside.folders)
        known = (MODELS.fullmatch(name) or NUMBERED.search(name) or name.startswith(_MODEL_FOLDERS) for name in names)
        if not any(known):
            self.lines.append("no file of a model is there")

    def pieces(self, without: Collection[str] = ()) -> None:
        """Every file of tensors is whole, every file that an index or a number tells of is there."""
        files = self.inside.files
        for name in sorted(files):
            if name.endswith(INDEX):
                self.indexed(name)
            elif name.endswith(CHECKPOINTS) and name not in without:
                self.tried(name, partial(refuse_partial, files[name].path))
        for group, number_of in numbered_of(without_indexed(files)).values():
            if len(group) < number_of:
                self._absent([f"{number_of - len(group)} of {number_of} files like {group[0]}"])

    def indexed(self, name: str) -> list[str]:
        """The files that an index names; that one is not there is a fault."""
        found: list[str] = self.tried(name, lambda: indexed(self.inside.files[name].path)) or []
        self._absent([shard for shard in found if shard not in self.inside.files])
        return found

    def _absent(self, names: Sequence[str]) -> None:
        if names:
            self.lines.append(f"{listing(names, _SHOWN)} {'is' if len(names) == 1 else 'are'} missing")

    def settled(self, found: Glance) -> Glance:
        """What was found. Raises CorruptFile with all faults where there are any."""
        if self.lines:
            raise CorruptFile(f"{self.inside.path}: {'; '.join(self.lines[:_MOST])}", path=self.inside.path)
        return found
