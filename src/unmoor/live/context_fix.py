"""The line that cures a mismatch, in the names of the frame where it belongs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn

from unmoor.values.mismatch import Fix, Met, SourceLine

from .context_frames import Source, Step, parsed, source_line
from .context_look import is_factory, look
from .context_names import Known, Names

__all__ = ["Anchor", "Culprit", "Making", "anchor_in", "fixes_for", "making_of"]

_ORDER: Final = ("made", "attribute", "loss", "state", "given", "result", "buffer", "parameter", "gradient")
"""Which tensor the fix is for, where several are away."""


class Making:
    """The statement that made a variable by a call that names no device: where it stands, and how it would be right."""

    def __init__(self, source: Source, statement: ast.stmt, call: ast.Call) -> None:
        step = source.step
        self.step = step
        self.line: SourceLine = source_line(Step(step.frame, statement.lineno, step.lasti))
        self._source, self._statement, self._call = source, statement, call

    def corrected(self, anchor: Anchor, home: str) -> str:
        """The statement with a device: as it is written where it takes one line, else made over."""
        call = self._call
        device = f"device={anchor.device(self.step, home, self._before)}"
        if self._statement.lineno != self._statement.end_lineno or call.end_col_offset is None:
            return f"{ast.unparse(call)[:-1]}, {device})"
        raw = self._source.text[self._statement.lineno - 1].encode()
        comma = ", " if call.args or call.keywords else ""
        end = call.end_col_offset
        text = raw[: end - 1] + f"{comma}{device})".encode() + raw[end : self._statement.end_col_offset]
        return text[self._statement.col_offset :].decode()

    def _before(self, name: str) -> bool:
        """Whether a variable of the function has its value before the statement runs."""
        code = self.step.frame.f_code
        if name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] or name in code.co_freevars:
            return True
        first = min((one.lineno for one, _ in _assignments(self._source.function(), name)), default=None)
        return first is not None and first < self._statement.lineno


class Anchor:
    """A tensor at home that the failing code has a variable for; `name` is "" where there is none."""

    def __init__(self, name: str, step: Step | None) -> None:
        self.name, self._frame = name, step.frame if step is not None else None

    def device(self, step: Step | None, home: str, known: Callable[[str], bool] = lambda _: True) -> str:
        """The device of home, as a frame can say it: by the variable, if it has that and it is `known` there."""
        here = self.name and (step is None or step.frame is self._frame) and known(self.name)
        return f"{self.name}.device" if here else repr(home)


def making_of(step: Step, root: str) -> Making | None:
    """How a frame's variable was last made before the frame's line, where that was by one of torch's factories."""
    source = Source(step)
    made = None
    for statement, value in sorted(_assignments(source.function(), root), key=lambda pair: pair[0].lineno):
        if (statement.end_lineno or statement.lineno) < step.line or isinstance(statement, ast.For | ast.AsyncFor):
            call = None if _moves(value) else next((node for node in ast.walk(value) if is_factory(node, step)), None)
            made = Making(source, statement, call) if isinstance(call, ast.Call) else None
    return made


def _moves(value: ast.expr) -> bool:
    """Whether an expression moves what it makes, so that a device for the making would change nothing."""
    return any(isinstance(node, ast.Attribute) and node.attr in ("to", "cpu", "cuda") for node in ast.walk(value))


def _assignments(function: ast.AST | None, root: str) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Statements of a function that give a variable a value, and the value."""
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign):
            targets = [one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            if root in targets and not any(isinstance(target, ast.Subscript) for target in node.targets):
                yield node, node.value
        elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
            if isinstance(node.target, ast.Name) and node.target.id == root:
                yield node, node.value
        elif isinstance(node, ast.For | ast.AsyncFor) and root in {
            one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)
        }:
            yield node, ast.Constant(None)


class Culprit:
    """A tensor that is away from home, as the fix needs it; `given` is the expression that a call was given it by."""

    def __init__(
        self, met: Met, known: Known | None, making: Making | None, owner: Any = None, *, given: str = ""
    ) -> None:
        self.met, self.known, self.making, self.owner = met, known, making, owner
        self.given = given
        self.held = _held_by(known) if known is not None else None
        self.is_loss = type(self.held).__module__ == "torch.nn.modules.loss"


def _held_by(known: Known) -> Any:
    """What the variable or expression holds that a name begins with."""
    tree = parsed(known.root) if known.step is not None else None
    body = tree.body if tree is not None else []
    expressions = [one.value for one in body if isinstance(one, ast.Expr)]
    return look(expressions[0], known.step) if expressions and known.step is not None else None


def fixes_for(culprits: list[Culprit], names: Names, model: Any, home: str, anchor: Anchor | None) -> tuple[Fix, ...]:
    """The cures for the tensors that are away, the likeliest cause first.

    `anchor` is a variable that is at home where the code failed, None where nobody looked for one.
    """
    anchor = anchor or Anchor("", None)
    ordered = sorted(culprits, key=lambda one: _ORDER.index(one.met.kind))
    return tuple(dict.fromkeys(_fix(culprit, names, model, home, anchor) for culprit in ordered))


def _fix(culprit: Culprit, names: Names, model: Any, home: str, anchor: Anchor) -> Fix:
    kind, met, known = culprit.met.kind, culprit.met, culprit.known
    if kind == "made" and culprit.making is not None:
        return Fix("made", culprit.making.corrected(anchor, home))
    if kind == "made" and known is None:
        comma = "" if met.name.endswith("()") else ", "
        return Fix("made", f"{met.name[:-1]}{comma}device={anchor.device(None, home)})")
    if kind == "attribute":
        return _registered(met, names, anchor, home)
    if kind == "loss":
        listed = _in_a_container(culprit.held, names)
        if listed:
            return Fix("attribute", listed)
        module = known.root if known is not None and known.root else met.name.rpartition(".")[0]
        return Fix("loss" if culprit.is_loss else "module", f'{module}.to("{home}")')
    if kind in ("parameter", "buffer"):
        return Fix("model", f'{_called(model, names, "model")}.to("{home}")')
    if kind == "state":
        optimizer = _called(culprit.owner, names, "optimizer")
        return Fix("state", f"{optimizer}.load_state_dict({optimizer}.state_dict())")
    if kind == "result" and len({parameter.device for parameter in names.parameters.values()}) > 1:
        return Fix("split", f'{_called(model, names, "model")}.to("{_most(names, home)}")')
    return _moved(culprit, model, home, anchor)


def _in_a_container(held: Any, names: Names) -> str:
    """The line that registers a module that one of the model keeps in a plain list or dict; "" where none does."""
    for _, module in names.modules.values() if isinstance(held, nn.Module) else ():
        for name, value in module.__dict__.items():
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            if any(one is held for one in items) and name != "_modules":
                return f"self.{name} = nn.{'ModuleDict' if isinstance(value, dict) else 'ModuleList'}(self.{name})"
    return ""


def _most(names: Names, home: str) -> str:
    """Where most parameters are, of several devices with as many the first."""
    devices = Counter(str(parameter.device) for parameter in names.parameters.values())
    return max((one for one in devices if one != "cpu"), key=devices.__getitem__, default=home)


def _registered(met: Met, names: Names, anchor: Anchor, home: str) -> Fix:
    """The cure for an attribute: a buffer; a move where it is used for one inside of a list, or set from outside."""
    place, _, name = met.name.rpartition(".")
    if not name.isidentifier():
        return Fix("tensor", f"self.{name}.to({anchor.device(None, home)})")
    module = next((module for path, module in names.modules.values() if path == place), None)
    owner, made = _written(module, name)
    known = names.variable(module) if not owner else None
    if known is not None:
        return Fix("tensor", f"{known.name}.{name} = {known.name}.{name}.to({home!r})")
    return Fix("attribute", f'{owner or "self"}.register_buffer("{name}", {made or name}, persistent=False)')


def _written(module: nn.Module | None, name: str) -> tuple[str, str]:
    """What a class calls its instance, and the expression that it gives an attribute.

    The expression is "" where it is not one on one line, both are where no class sets the attribute.
    """
    for kind in type(module).__mro__ if module is not None else ():
        if kind is nn.Module:
            return "", ""
        try:
            source = textwrap.dedent(inspect.getsource(kind))
        except (OSError, TypeError, SyntaxError, ValueError, SystemError):
            return "self", ""
        tree = parsed(source)
        if tree is None:
            return "self", ""
        set_here = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == name]
        if any(isinstance(node.ctx, ast.Store) for node in set_here):
            found = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _sets(node, name)]
            if len(found) != 1 or found[0].lineno != found[0].end_lineno:
                return "self", ""
            owner = ast.unparse(found[0].targets[0]).rpartition(".")[0]
            return owner, ast.get_source_segment(source, found[0].value) or ""
    return "self", ""


def _sets(node: ast.Assign, name: str) -> bool:
    """Whether a statement sets an attribute of one variable, and that alone."""
    target = node.targets[0]
    return (
        len(node.targets) == 1
        and isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.attr == name
    )


def _moved(culprit: Culprit, model: Any, home: str, anchor: Anchor) -> Fix:
    """The cure for a tensor that was handed in: it is moved, with all of its batch."""
    met, known = culprit.met, culprit.known
    if known is None or known.step is None:
        device = repr(home) if culprit.given else anchor.device(None, home)
        return Fix("tensor", f"{culprit.given or met.name.removeprefix('its ')}.to({device})")
    what = _batch_in(met.name, known.root, known.step.value(known.root))
    like = _in_frame(model, known.step, home)
    begin = f"{what} = " if _can_be_set(known.root, known.step) else ""
    if like:
        return Fix("batch" if what != met.name else "tensor", f"{begin}unmoor.to_device({what}, like={like})")
    if what == met.name:
        return Fix("tensor", f"{begin}{what}.to({anchor.device(known.step, home)})")
    return Fix("batch", f'{begin}unmoor.to_device({what}, device="{home}")')


def _can_be_set(root: str, step: Step) -> bool:
    """Whether a statement may set a frame's variable: not in a lambda, nor one of a function around."""
    code = step.frame.f_code
    return root not in code.co_freevars and (code.co_name == "<module>" or not code.co_name.startswith("<"))


def _batch_in(name: str, root: str, held: Any) -> str:
    """The expression of the batch that a tensor is of: its variable, or what an object that holds the run calls it."""
    rest = name[len(root) :]
    runs = isinstance(held, nn.Module) or any(
        isinstance(value, nn.Module | torch.optim.Optimizer) for value in getattr(held, "__dict__", {}).values()
    )
    if not (runs and rest.startswith(".")):
        return root
    attribute = rest[1:].partition("[")[0].partition(".")[0]
    return f"{root}.{attribute}"


def _in_frame(model: Any, step: Step, home: str) -> str:
    """The variable of a frame that holds the model, or a module of it, that is at home."""
    for name, value in step.frame.f_locals.items():
        if isinstance(value, nn.Module) and (value is model or name == "self"):
            devices = {str(parameter.device) for parameter in value.parameters()}
            if devices == {home}:
                return name
    owner = step.value("self")
    for name, value in getattr(owner, "__dict__", {}).items():
        if value is model and model is not None:
            return f"self.{name}"
    return ""


def _called(value: Any, names: Names, default: str) -> str:
    known = names.variable(value) if value is not None else None
    return known.name if known is not None else default


def anchor_in(step: Step, source: Source, home: str) -> Anchor:
    """A variable of the failing frame that is a tensor at home: the first that the failing code names."""
    node = source.statement()
    for one in ast.walk(node) if node is not None else ():
        if isinstance(one, ast.Name):
            value = look(one, step)
            if isinstance(value, torch.Tensor) and str(value.device) == home:
                return Anchor(one.id, step)
    for name, value in step.frame.f_locals.items():
        if isinstance(value, torch.Tensor) and str(value.device) == home and name.isidentifier():
            return Anchor(name, step)
    return Anchor("", step)
