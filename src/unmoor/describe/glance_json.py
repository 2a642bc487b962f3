"""A glance at the JSON beside checkpoints: the state of the HF Trainer, and the index of a state dict in several files."""

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


def trainer_values(path: str, name: str) -> tuple[dict[str, Any], list[str]]:
    """What trainer_state.json says of a checkpoint called `name`: values as of any other, and what else to know."""
    state = read_json(path)
    if not isinstance(state, dict):
        raise CorruptFile(f"{path} holds no state of a trainer", path=path)
    history = state.get("log_history")
    step = number(state.get("global_step"))
    values = {"global_step": step, "epoch": state.get("epoch"), "metrics": _logged(history, step)}
    best, metric = state.get("best_model_checkpoint"), state.get("best_metric")
    is_best = type(best) is str and best.replace("\\", "/").rstrip("/").rpartition("/")[2] == name
    told = f" ({metric:.6g})" if type(metric) in (int, float) else ""
    return values, [f"the best so far by the trainer's metric{told}"] if is_best else []


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
