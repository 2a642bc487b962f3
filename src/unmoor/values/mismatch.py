"""Tensors on different devices that met in one operation, as a frozen value: what they are, where, and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["FIXES", "KINDS", "SITUATIONS", "Fix", "Met", "Mismatch", "SourceLine"]

KINDS: Final = {
    "parameter": "a parameter of the model",
    "buffer": "a buffer of the model",
    "attribute": "a tensor that a module of the model keeps as a plain attribute, which .to() does not move",
    "loss": "a tensor of a module outside of the model, such as the weight of a loss",
    "state": "state that an optimizer keeps for a parameter",
    "gradient": "the gradient of a parameter",
    "given": "a tensor that was handed in: of a batch, an argument, a variable",
    "made": "a tensor that the code made without saying on which device",
    "result": "a value computed on the way, which no variable holds",
}
"""What a tensor of a mismatch is."""

SITUATIONS: Final = {
    "module": "a module of PyTorch was called",
    "code": "a line of the user's own code",
    "optimizer": "the step of an optimizer",
    "capturable": "the step of an optimizer whose option asks for state on an accelerator",
    "wrapper": "DataParallel, which found a tensor of its module elsewhere",
}
"""Where the operation was met."""

FIXES: Final = {
    "batch": "Move the batch",
    "tensor": "Move it",
    "model": "Move the model, before its optimizer is built",
    "split": "Put the model on one device, before its optimizer is built",
    "loss": "Move the loss",
    "module": "Move that module too",
    "attribute": "Register it where it is made, so that it moves with the model",
    "made": "Make it where it is needed",
    "state": "Bring the state to its parameters",
    "step": "Put the step counters on the CPU",
    "capturable": "Switch the option off",
    "": "",
}
"""Kind of a fix -> its words before the line of code."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of code: `file` relative to the current directory where it lies beneath, its number and its text.

    The number is 0 where there is no line that a person could open.
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.spot}  {self.text}".rstrip()

    @property
    def spot(self) -> str:
        """The file and the number."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Met:
    """One tensor of the operation.

    `name` is the path of a parameter or buffer ("decoder.2.running_mean"), the expression of a variable
    ("batch['labels']"), or state with its parameter ("exp_avg of encoder.0.weight"). `kind` is one of KINDS. `word` is
    what the operation calls it ("input"). `made` is the line that made it, where that is known and matters.
    """

    name: str
    kind: str
    device: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    word: str = ""
    made: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """The line of code that cures it, and the kind of cure, one of FIXES."""

    kind: str
    line: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Tensors on different devices that met in one operation.

    `place` is the path of the module, or the name of the loss or optimizer, `owner` its class; both are "" where the
    code is of no module. `home` is the device where the others should be. `others` is device -> how many parameters of
    the model lie there besides those named. `fixes` cure all that is away, the likeliest cause first. `lines` are the
    lines of the user's code that led there, the caller's first. `text` is the whole message.
    """

    situation: str
    place: str
    owner: str
    met: tuple[Met, ...]
    home: str
    fixes: tuple[Fix, ...] = ()
    lines: tuple[SourceLine, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def fix(self) -> Fix:
        """The first of the cures; an empty one where none is known."""
        return self.fixes[0] if self.fixes else Fix("", "")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that met, in the order of the tensors."""
        return tuple(dict.fromkeys(met.device for met in self.met))

    @property
    def away(self) -> tuple[Met, ...]:
        """The tensors that are not at home."""
        return tuple(met for met in self.met if met.device != self.home)

    def to_json(self) -> dict[str, Any]:
        """The mismatch as plain JSON values."""
        plain = asdict(self)
        plain["met"] = [{**met, "shape": None if met["shape"] is None else list(met["shape"])} for met in plain["met"]]
        return {**plain, "lines": [asdict(line) for line in self.lines], "others": dict(self.others)}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Mismatch:
        """A mismatch out of what `to_json` gave."""
        met = tuple(
            Met(
                **{
                    **one,
                    "shape": None if one["shape"] is None else tuple(one["shape"]),
                    "made": None if one["made"] is None else SourceLine(**one["made"]),
                }
            )
            for one in row["met"]
        )
        lines = tuple(SourceLine(**line) for line in row["lines"])
        return cls(**{**row, "met": met, "fixes": tuple(Fix(**fix) for fix in row["fixes"]), "lines": lines})
