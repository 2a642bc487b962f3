"""What pages of HTML have in common: words made safe, scripts put in, and the policy that lets only those run."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from typing import Final

from .layout import plain

__all__ = ["document", "text_of"]


def text_of(value: str) -> str:
    """Words that came from a file or a run, escaped for terminals first, then for HTML; lines stay lines."""
    return escape("\n".join(map(plain, value.split("\n"))), quote=True)


def _embedded(script: str) -> str:
    r"""A script with what would end its element, or confuse its end, written another way.

    >>> _embedded("x = '</script>'")
    "x = '<\\/script>'"
    """
    return script.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(scripts: Iterable[str]) -> str:
    """Own scripts by their hashes. Styles are made by plotly as it draws; nothing can be fetched with them."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def document(*, title: str, style: str, body: Iterable[str], data: str, scripts: Sequence[str]) -> str:
    """A whole page: parts of its body, its data as JSON, and the scripts that read them."""
    scripts = [_embedded(script) for script in scripts]
    parts = [
        *body,
        f'<script type="application/json" id="data">{data}</script>',
        *(f"<script>{script}</script>" for script in scripts),
    ]
    return _FRAME.format(policy=_policy(scripts), title=text_of(title), style=style, body="\n".join(parts))


_FRAME: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
