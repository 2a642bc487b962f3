"""A catalog as one page of HTML that needs nothing else: no network, no file beside it. Pure.

Law: all that came out of a file passes `text_of` (escaped for terminals first, then for HTML) or stands in the one JSON
element; no script of the page makes HTML of words. The page's own policy allows its own scripts, by their hashes, and
nothing else; what a reader must know is there without any script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from unmoor.values.catalog import Catalog
from unmoor.values.finding import SEVERITIES, Finding
from unmoor.values.text import count, format_bytes, listing

from .about import facts
from .claims import Claims, claims
from .content import Safety, content, dialect_text, format_text, role_rank, safety, safety_text
from .devices import devices_text, tags_text
from .html import document, text_of
from .layout import plain
from .members import Membership, membership
from .own import with_own_joined
from .page_data import data_text, page_data
from .roles import RoleRow, role_rows
from .sharing import sharing

__all__ = ["Assets", "page_html"]

_ROWS: Final = 200
"""The most rows of the table of parts."""

_FINDINGS: Final = 200
"""The most findings to spell out."""

_VALUES: Final = 40


@dataclass(frozen=True, slots=True)
class Assets:
    """What a page is drawn with: the texts of its style sheet, its scripts, and plotly's."""

    style: str
    table: str
    treemap: str
    plotly: str


def page_html(catalog: Catalog, *, assets: Assets, version: str) -> str:
    """The page of one checkpoint. The same catalog gives the same page."""
    whole = with_own_joined(catalog)
    members, claimed, judged = membership(whole), claims(catalog), safety(catalog)
    scripts = [assets.plotly, assets.table, assets.treemap] if whole.tensors else [assets.table]
    name = _name(catalog.path)
    body = [
        _header(catalog, name),
        "<main>",
        _figures(whole, judged),
        _findings(catalog.findings, judged),
        _parts(members, claimed),
        *([_MAP] if whole.tensors else []),
        _about(whole, members, claimed, judged),
        *([_TABLE] if whole.tensors else []),
        "</main>",
        f"<footer>Written by unmoor {text_of(version)} without running anything in {text_of(catalog.path)}.</footer>",
    ]
    title, data = f"{name} · unmoor inspect", data_text(page_data(whole))
    return document(title=title, style=assets.style, body=body, data=data, scripts=scripts)


def _name(path: str) -> str:
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2] or path


def _header(catalog: Catalog, name: str) -> str:
    files = catalog.facts.get("files")
    form = f"{format_text(catalog.format)} in {count(len(files), 'file')}" if files else format_text(catalog.format)
    words = [form, format_bytes(catalog.size), dialect_text(catalog)]
    what = content(catalog)
    path = "" if catalog.path == name else f'<p class="path">{text_of(catalog.path)}</p>'
    choices = "".join(
        f'<label><input type="radio" name="theme" value="{value}"{" checked" if value == "auto" else ""}>'
        f"<span>{value.capitalize()}</span></label>"
        for value in ("auto", "light", "dark")
    )
    return (
        '<header><div><p class="eyebrow">unmoor inspect</p>'
        f"<h1>{_breakable(name)}</h1>{path}"
        f'<p class="lead">{text_of(what[:1].upper() + what[1:])}</p>'
        f'<p class="form">{text_of(" · ".join(filter(None, words)))}</p></div>'
        f'<fieldset class="switch theme needs-script"><legend class="visually-hidden">Colours of the page</legend>'
        f"{choices}</fieldset></header>"
    )


def _breakable(name: str) -> str:
    """A long name may break behind its punctuation."""
    return "".join(f"{c}<wbr>" if c in "_-./" else c for c in text_of(name))


def _figures(catalog: Catalog, judged: Safety) -> str:
    nbytes = sum(entry.nbytes for entry in catalog.tensors)
    where = devices_text(catalog).removeprefix("saved on ")
    tags = [plain(tag) for tag in catalog.devices() if tag]
    known = tags and "no device recorded" not in where
    cards = [
        ("tensors", f"{len(catalog.tensors):,}", listing([f"{n:,} {role}" for role, n in _by_role(catalog)], 4), ""),
        ("in tensors", format_bytes(nbytes), f"{format_bytes(catalog.size)} on the disk", ""),
        (
            "saved on",
            (listing(tags, 2) if len(tags) < 4 else tags_text(tags)) if known else "not recorded",
            where,
            "",
        ),
        ("code", _CODE[judged.level], safety_text(judged), judged.level),
    ]
    return '<section class="figures" aria-label="At a glance">' + "".join(_card(*card) for card in cards) + "</section>"


_CODE: Final = {"safe": "none", "code": "needs code", "danger": "DANGER"}


def _by_role(catalog: Catalog) -> list[tuple[str, int]]:
    return [(role, n) for role, (n, _) in sorted(catalog.roles().items(), key=lambda item: role_rank(item[0]))]


def _card(label: str, figure: str, words: str, level: str) -> str:
    return (
        f'<div class="card {level}"><p class="label">{text_of(label)}</p><p class="figure">{_breakable(figure)}</p>'
        f'<p class="words">{text_of(words)}</p></div>'
    )


def _findings(findings: Sequence[Finding], judged: Safety) -> str:
    """What to act on, and what to know, worst first; the first card has told what is told there."""
    told = judged.told if judged.level != "danger" else ()
    ranked = sorted((f for f in findings if f not in told), key=lambda f: -_rank(f))
    if not ranked:
        return '<p class="none" id="findings">No findings: nothing in this file needs attention.</p>'
    items = "".join(map(_finding, ranked[:_FINDINGS]))
    more = f"<li>and {len(ranked) - _FINDINGS:,} more</li>" if len(ranked) > _FINDINGS else ""
    return _section("findings", "Findings", f"<ul>{items}{more}</ul>")


def _rank(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity) if finding.severity in SEVERITIES else 0


def _finding(finding: Finding) -> str:
    level = finding.severity if finding.severity in SEVERITIES else "info"
    place = f"<code>{_breakable(finding.place)}</code> " if finding.place else ""
    remedy = f'<p class="remedy">{text_of(finding.remedy)}</p>' if finding.remedy else ""
    word = "note" if finding.severity == "info" else finding.severity
    return (
        f'<li class="{level}"><p><strong class="badge">{text_of(word)}</strong> {place}{text_of(finding.message)} '
        f'<span class="code">{text_of(finding.code)}</span></p>{remedy}</li>'
    )


def _parts(members: Membership, claimed: Claims) -> str:
    rows, values = role_rows(members, claimed)
    if not rows and not values:
        return ""
    rows.sort(key=lambda row: role_rank(row[1].role))
    shown = "".join(_part(path, row) for path, row in rows[:_ROWS])
    cut = f'<p class="none">and {count(len(rows) - _ROWS, "part")} more</p>' if len(rows) > _ROWS else ""
    head = "".join(
        f'<th scope="col"{_NUMBER if word in ("tensors", "bytes") else ""}>{word}</th>'
        for word in ("role", "at", "tensors", "bytes", "device", "what")
    )
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Parts of the checkpoint"><table>'
        f'<caption class="visually-hidden">Parts of the checkpoint</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{shown}</tbody></table></div>"
    )
    extra = listing([path or "the whole file" for path in values], _VALUES)
    more = f'<p class="extra"><span>Plain values</span> {text_of(extra)}</p>' if values else ""
    return _section("parts", "Parts", (table if rows else "") + cut + more)


_NUMBER: Final = ' class="number"'


def _part(path: str, row: RoleRow) -> str:
    cells = [
        f'<th scope="row">{text_of(row.role)}</th>',
        f"<td><code>{_breakable(path or 'the whole file')}</code></td>",
        f'<td class="number">{row.tensors:,}</td>',
        f'<td class="number">{text_of(format_bytes(row.nbytes) if row.tensors else "")}</td>',
        f"<td>{text_of(tags_text(row.devices))}</td>",
        f"<td>{escape(row.what.replace(chr(160), ' '))}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _about(catalog: Catalog, members: Membership, claimed: Claims, judged: Safety) -> str:
    rows = [*facts(catalog, members, claimed, judged), *sharing(catalog)]
    if not rows:
        return ""
    grouped: dict[str, list[str]] = {}
    for word, text in rows:
        grouped.setdefault(word, []).append(text.replace("\xa0", " "))
    terms = "".join(
        f"<div><dt>{text_of(word)}</dt>{''.join(f'<dd>{text_of(text)}</dd>' for text in texts)}</div>"
        for word, texts in grouped.items()
    )
    return _section("about", "About this file", f"<dl>{terms}</dl>")


def _section(name: str, title: str, inside: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{inside}</section>'


_WAYS: Final = "".join(
    f'<label><input type="radio" name="colour" value="{way}"{" checked" if way == "role" else ""}>'
    f"<span>{way}</span></label>"
    for way in ("role", "device", "dtype")
)

_MAP: Final = _section(
    "bytes",
    "Where the bytes are",
    '<div class="bar needs-script"><nav id="trail" aria-label="Place in the tree"></nav>'
    f'<fieldset class="switch"><legend>Colour by</legend>{_WAYS}</fieldset></div>'
    '<div id="map" role="img" aria-label="Treemap of the tensors by bytes; the table below lists the same tensors">'
    "</div>"
    '<ul id="legend" aria-label="Colours"></ul>'
    "<noscript><p>A script draws the map and the table of tensors, and this browser runs none.</p></noscript>",
)

_TABLE: Final = _section(
    "tensors",
    "Tensors",
    '<form class="bar needs-script" id="filters" role="search">'
    '<label class="search"><span class="visually-hidden">Search tensors</span>'
    '<input type="search" id="search" placeholder="Search: name, shape, dtype, device" autocomplete="off" '
    'spellcheck="false"></label>'
    '<label>role <select id="by-role"></select></label>'
    '<label>device <select id="by-device"></select></label>'
    '<label>dtype <select id="by-dtype"></select></label>'
    '<button type="button" id="below" hidden></button></form>'
    '<p id="found" role="status" aria-live="polite"></p>'
    '<div class="scroll" id="list" tabindex="0" role="region" aria-labelledby="tensors-title"></div>'
    '<nav class="pager needs-script" id="pager" aria-label="Pages of the table"></nav>',
)
