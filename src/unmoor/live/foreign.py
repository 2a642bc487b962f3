"""A tree with stand-ins for foreign objects as the pickle that it came from: classes by name, none of them imported.

Python's own pickler imports what it names, to be sure that it is there; the program that reads the file has it, and
this process may not. So its opcodes for globals, calls and states are written here (protocol 2).
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from unmoor.errors import UnsupportedFile
from unmoor.values.nodes import Opaque

from .stored import Reducer

__all__ = ["ForeignPickler"]


_PICKLER: Any = pickle._Pickler
"""The pickler that is written in Python: its steps can be taken one by one."""


class ForeignPickler(_PICKLER):  # type: ignore[misc]
    """Writes an Opaque as its class or function, its arguments, and what was set on it."""

    def __init__(self, sink: io.BytesIO, reducer: Reducer) -> None:
        super().__init__(sink, protocol=2)
        self._reducer = reducer
        self._globals: dict[str, Opaque] = {}

    def persistent_id(self, obj: Any) -> Any:
        """The id of a storage; None for everything else."""
        return self._reducer.persistent_id(obj)

    def reducer_override(self, obj: Any) -> Any:
        """Tensors by the call that rebuilds them; the rest as pickle does."""
        return self._reducer.reducer_override(obj)

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:  # noqa: FBT001, FBT002 - the form of the base
        """Write one object."""
        if type(obj) is Opaque and id(obj) not in self.memo:
            self._opaque(obj)
        else:
            super().save(obj, save_persistent_id)

    def _opaque(self, obj: Opaque) -> None:
        if obj.how == "global":
            module, _, name = obj.name.rpartition(".")
            self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
            self.memoize(obj)
            return
        if obj.kwargs:
            raise UnsupportedFile(
                f"an object of {obj.name} is made with keyword arguments, which cannot be written again"
            )
        self.save(self._globals.setdefault(obj.name, Opaque(obj.name, how="global")))
        self.save(tuple(obj.args))
        self.write(pickle.NEWOBJ if obj.how == "new" else pickle.REDUCE)
        self.memoize(obj)
        for item in obj.items:
            self.save(item)
            self.write(pickle.APPEND)
        for key, value in obj.entries:
            self.save(key)
            self.save(value)
            self.write(pickle.SETITEM)
        if obj.state is not None:
            self.save(obj.state)
            self.write(pickle.BUILD)
