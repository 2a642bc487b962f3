"""Folders that are one checkpoint, by the program that writes them: recognising one is data.

File names as the programs write them: accelerate.utils.constants and accelerate.checkpointing, transformers.trainer,
guided_diffusion.train_util, hippynn.experiment.serialization.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["INDEX", "TABLES", "Row", "Table"]

INDEX: Final = ".index.json"
"""How the name of an index ends: the JSON file that tells which of several files holds which tensor."""

Use = Literal["part", "aside", "values"]


@dataclass(frozen=True, slots=True)
class Row:
    """Files of one kind in a folder.

    `pattern` matches a whole file name; its groups `key` (which of several), `rank` and `step` are read from it.
    `role` is the role word of what such a file is for, "" where its structure decides. `use` is part; aside for files
    that are described and loaded, and restored only where `at` names them; values for JSON. Of rows with the same
    `one_of` the first that matches a file counts, as in the program's own reader.
    """

    pattern: re.Pattern[str]
    role: str = ""
    use: Use = "part"
    one_of: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One dialect: every one of `marks` must match a file.

    `step_key` is where the step of the names is kept, `needed` what a step cannot do without.
    """

    dialect: str
    marks: tuple[re.Pattern[str], ...]
    rows: tuple[Row, ...]
    step_key: str = ""
    needed: tuple[str, ...] = ()


def _row(pattern: str, role: str = "", use: Use = "part", one_of: str = "") -> Row:
    return Row(re.compile(pattern), role, use, one_of)


_INDEXED: Final = r"(?:\.index\.json)?"
_NUMBER: Final = r"(?:_(?P<key>\d+))?"

TABLES: Final[tuple[Table, ...]] = (
    Table(
        "accelerate",
        (re.compile(r"random_states_\d+\.pkl"),),
        (
            _row(rf"model{_NUMBER}\.safetensors{_INDEXED}", "model", one_of="model"),
            _row(rf"pytorch_model{_NUMBER}\.bin{_INDEXED}", "model", one_of="model"),
            _row(rf"pytorch_model_fsdp{_NUMBER}\.bin", "model", one_of="model"),
            _row(rf"optimizer{_NUMBER}\.bin", "optimizer"),
            _row(rf"scheduler{_NUMBER}\.bin", "scheduler"),
            _row(r"scaler\.pt", "scaler"),
            _row(rf"(?:sampler|dl_state_dict){_NUMBER}\.bin", "loader"),
            _row(r"custom_checkpoint_(?P<key>\d+)\.pkl", "custom"),
            _row(r"random_states_(?P<rank>\d+)\.pkl", "rng"),
        ),
    ),
    Table(
        "hf-trainer",
        (re.compile(r"trainer_state\.json"),),
        (
            _row(rf"(?:model|adapter_model)\.safetensors{_INDEXED}", "model", one_of="model"),
            _row(rf"(?:pytorch_model|adapter_model)\.bin{_INDEXED}", "model", one_of="model"),
            _row(r"pytorch_model_fsdp\.bin", "model", one_of="model"),
            _row(r"optimizer\.(?:pt|bin)", "optimizer"),
            _row(r"scheduler\.pt", "scheduler"),
            _row(r"scaler\.pt", "scaler"),
            _row(r"rng_state(?:_(?P<rank>\d+))?\.pth", "rng"),
            _row(r"trainer_state\.json", "", "values"),
            _row(r"training_args\.bin"),
        ),
    ),
    Table(
        "guided-diffusion",
        (re.compile(r"model\d{6,}\.pt"), re.compile(r"(?:opt|ema_[\d.]+_)\d{6,}\.pt")),
        (
            _row(r"model(?P<step>\d{6,})\.pt", "model"),
            _row(r"ema_(?P<key>[\d.]+)_(?P<step>\d{6,})\.pt", "ema"),
            _row(r"opt(?P<step>\d{6,})\.pt", "optimizer"),
        ),
        step_key="step",
        needed=("model{}.pt", "opt{}.pt"),
    ),
    Table(
        "hippynn",
        (re.compile(r"experiment_structure\.pt"),),
        (
            _row(r"best_checkpoint\.pt", one_of="state"),
            _row(r"checkpoint_epoch_(?P<step>\d+)\.pt", one_of="state"),
            _row(r"experiment_structure\.pt", "", "aside"),
        ),
    ),
)
"""Every dialect of folders that are read as one checkpoint; the first whose marks are all there decides."""
