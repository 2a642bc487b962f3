"""A proof as one page of HTML that needs nothing else: the sentence, both loss curves to look at closely, the table.

Pure. Law: what came from the user's run is escaped, or stands in the one JSON element; the page's own policy allows its
own scripts, by their hashes, and nothing else; what a reader must know is there without any script.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from unmoor.values.proof import Proof

from .curves import COLOURS, differences
from .documents import strict
from .html import document, text_of
from .proof import difference_text, headline, table_cells

__all__ = ["ProofAssets", "proof_page"]


@dataclass(frozen=True, slots=True)
class ProofAssets:
    """What the page is drawn with: the texts of its style sheet, its script, and plotly's."""

    style: str
    script: str
    plotly: str


def proof_page(proof: Proof, *, assets: ProofAssets, version: str) -> str:
    """The page of one proof. The same proof gives the same page."""
    body = [
        f'<header class="{"good" if proof.ok else "bad"}"><h1>{text_of(headline(proof))}</h1>',
        f"<p>{text_of(proof.build)}, {proof.steps} steps, cut after step {proof.cut}</p></header>",
        "<main>",
        "<dl>",
        *(f"<dt>{text_of(word)}</dt><dd>{text_of(text)}</dd>" for word, text in _facts(proof)),
        "</dl>",
        '<div id="curves" role="img" aria-label="Loss of both runs by step, and their difference"></div>',
        *_table(proof),
        *_losses(proof),
        "</main>",
        f"<footer>Written by unmoor {text_of(version)}.</footer>",
    ]
    return document(
        title=f"{headline(proof)} · unmoor prove",
        style=assets.style,
        body=body,
        data=_data(proof),
        scripts=[assets.plotly, assets.script],
    )


_BAD: Final = ' class="bad"'


def _facts(proof: Proof) -> Iterator[tuple[str, str]]:
    yield from proof.setting
    if proof.difference is not None and proof.difference.component != "the restore":
        yield "first difference", difference_text(proof.difference, proof.cut)
    if proof.cause:
        yield "cause", proof.cause
    yield from proof.notes
    if proof.fix:
        yield "fix", proof.fix


def _table(proof: Proof) -> Iterator[str]:
    if not proof.table:
        return
    rows = table_cells(proof)
    yield "<table><thead><tr>" + "".join(f"<th>{text_of(cell)}</th>" for cell in rows[0]) + "</tr></thead><tbody>"
    for row in rows[1:]:
        cells = "".join(f"<td{_BAD if 'differs' in cell.lower() else ''}>{text_of(cell)}</td>" for cell in row[1:])
        yield f"<tr><th>{text_of(row[0])}</th>{cells}</tr>"
    yield "</tbody></table>"


def _losses(proof: Proof) -> Iterator[str]:
    """The numbers behind the curves, for readers who want them and for those who see no curves."""
    yield "<details><summary>Losses, step by step</summary><table><thead><tr>"
    yield "<th>step</th><th>uninterrupted</th><th>resumed</th><th>difference</th></tr></thead><tbody>"
    gaps = differences(proof)
    for step, loss in enumerate(proof.losses, 1):
        after = step - proof.cut - 1
        cells = [loss, proof.resumed[after], gaps[after]] if after >= 0 else [loss, None, None]
        yield f"<tr><th>{step}</th>" + "".join(f"<td>{_number(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></details>"


def _number(value: float | None) -> str:
    return "" if value is None else text_of(f"{value:.9g}")


def _data(proof: Proof) -> str:
    data = {
        "cut": proof.cut,
        "losses": [strict(loss) for loss in proof.losses],
        "resumed": [strict(loss) for loss in proof.resumed],
        "differences": [strict(gap) for gap in differences(proof)],
        "first": 0 if proof.difference is None else proof.difference.step,
        "colours": COLOURS,
    }
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
