"""What pages of HTML have in common: words made safe, scripts put in, and the policy that lets only those run."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape

from .layout import plain

__all__ = ["embedded", "policy", "text_of"]


def text_of(value: str) -> str:
    """Words that came from a file or a run, escaped for terminals first, then for HTML; lines stay lines."""
    return escape("\n".join(map(plain, value.split("\n"))), quote=True)


def embedded(script: str) -> str:
    r"""A script with what would end its element, or confuse its end, written another way.

    >>> embedded("x = '</script>'")
    "x = '<\\/script>'"
    """
    return script.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def policy(scripts: Iterable[str]) -> str:
    """Own scripts by their hashes. Styles are made by plotly as it draws; nothing can be fetched with them."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
