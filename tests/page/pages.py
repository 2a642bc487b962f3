"""Pages of catalogs made of literals, written for a browser to open."""

from __future__ import annotations

from pathlib import Path

import unmoor
from tests.report.catalogs import adam, catalog, part, tensor, training_checkpoint, transformer
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding

ATTACK = "</script><img src=x onerror=\"document.title='ran'\"><b>&amp;</b>"
"""A name that would end the script that it stands in, and run one of its own."""

LINK = '<a href="javascript:document.title=1">x</a>$x$%{label}'
"""A name that plotly would make a link of, were it markup to it."""


def written(found: Catalog, folder: Path) -> Path:
    """The page of a catalog, as a file."""
    unmoor.page(found, folder / "page.html")
    return folder / "page.html"


def hostile() -> Catalog:
    """Markup wherever a file may hold words: path, names, devices, classes, findings, remedies."""
    model = [tensor(("model", ATTACK), (512, 8), device=f"cuda{ATTACK}"), tensor(("model", LINK), (256, 8))]
    own = tensor(("model", f"layers.{ATTACK}.w"), (128,), dtype="int64")
    findings = [Finding(ATTACK, "error", ATTACK, ATTACK, ATTACK), Finding("x", ATTACK, LINK, LINK)]
    state = part("optimizer", (ATTACK,), family=ATTACK, options=[{"lr": 0.1, ATTACK: ATTACK}], state_keys=[ATTACK])
    held = [*model, own]
    return catalog([(part("model", ("model",), held), held), (state, [])], findings=findings, path=f"runs/{ATTACK}.pt")


def large(number: int) -> Catalog:
    """About `number` tensors of a model and its optimizer."""
    model = transformer(layers=number // 39, width=16)
    state = adam(("optimizer",), [entry.shape for entry in model])
    detail = {"family": "Adam", "params": len(model), "with_state": len(model), "options": [{"lr": 1e-3}]}
    return catalog(
        [(part("model", ("model",), model), model), (part("optimizer", ("optimizer",), state, **detail), state)],
        tree={},
    )


__all__ = ["ATTACK", "LINK", "hostile", "large", "training_checkpoint", "written"]
