"""A glance at the JSON beside checkpoints: the state of the HF Trainer, the index of a state dict in several files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from unmoor.errors import CorruptFile
from unmoor.filing import open_reader, read
from unmoor.values.progress import number
from unmoor.values.text import format_bytes

__all__ = ["indexed", "read_json", "trainer_values"]

_MAX: Final = 32 << 20
_MOST: Final = 100_000


def read_json(path: str) -> Any:
    """What a JSON file says. Raises CorruptFile where it is none, or too large for a glance."""
    with open_reader(path) as reader:
        if reader.size > _MAX:
            raise CorruptFile(f"{path} is JSON of {format_bytes(reader.size)}", path=path)
        data = read(reader, 0, reader.size)
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise CorruptFile(f"{path} is no JSON" if data else f"{path} is empty (0 bytes)", path=path) from None


def indexed(path: str) -> list[str]:
    """The files that an index names, each once. Raises CorruptFile where it names none, or one that is elsewhere."""
    value = read_json(path)
    found = value.get("weight_map") if isinstance(value, dict) else None
    files = list(found.values())[:_MOST] if isinstance(found, dict) else []
    if not files or any(type(file) is not str or "/" in file or "\\" in file for file in files):
        raise CorruptFile(f"{path} is no index of files beside it", path=path)
    return sorted(set(files))


def trainer_values(path: str) -> dict[str, Any]:
    """What trainer_state.json says: values as those of any other checkpoint."""
    state = read_json(path)
    if not isinstance(state, dict):
        raise CorruptFile(f"{path} holds no state of a trainer", path=path)
    step, best = number(state.get("global_step")), state.get("best_metric")
    metrics = _logged(state.get("log_history"), step)
    metrics |= {"best_metric": best} if type(best) in (int, float) else {}
    return {"global_step": step, "epoch": state.get("epoch"), "metrics": metrics}


def _logged(history: Any, step: int | None) -> dict[str, Any]:
    """The numbers that were logged at a step."""
    rows: Sequence[Any] = history if isinstance(history, list) else ()
    made: dict[str, Any] = {}
    for row in rows[-_MOST:]:
        if isinstance(row, Mapping) and number(row.get("step")) == step:
            made |= {key: value for key, value in row.items() if _is_metric(key, value)}
    return made


def _is_metric(key: Any, value: Any) -> bool:
    plain = type(key) is str and type(value) in (int, float)
    return plain and ("loss" in key or key.startswith("eval_")) and not key.endswith(("_runtime", "_per_second"))
