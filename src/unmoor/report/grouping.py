"""Folding many names into few patterns, the way a person would write them down.

Two laws, each a property test: every name is in exactly one row, and unfolding the rows gives back exactly the names
that went in. Pure; knows names and kinds, no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Final, Generic, TypeVar

__all__ = ["Row", "choice_text", "fold", "pattern_text"]

K = TypeVar("K", bound=Hashable)
_Pattern = tuple[tuple[str, ...], ...]

_DEPTH: Final = 48
"""Names have at most this many segments, the last one keeps what is left: the work on hostile names is bounded."""

_LEAVES: Final = 4
"""So many sibling leaves of different kinds still make one row; more are kept apart by their kind."""


@dataclass(frozen=True, slots=True)
class Row(Generic[K]):
    """Names that one pattern covers.

    `pattern` holds for each segment of the name its alternatives in the order of the file. `kinds` is one kind for
    all names, or one kind for each alternative of the last segment.
    """

    pattern: _Pattern
    kinds: tuple[K, ...]

    @property
    def count(self) -> int:
        """How many names the row covers."""
        return prod(map(len, self.pattern))

    def unfold(self) -> Iterator[tuple[str, K]]:
        """Every name that the row covers, with its kind."""
        for head in product(*self.pattern[:-1]):
            for i, leaf in enumerate(self.pattern[-1]):
                yield ".".join((*head, leaf)), self.kinds[i if len(self.kinds) > 1 else 0]

    def __str__(self) -> str:
        return pattern_text(self.pattern)


def fold(items: Iterable[tuple[str, K]], *, families: Mapping[K, Hashable] | None = None) -> list[Row[K]]:
    """Rows that cover every (name, kind) exactly once, in the order of their first names.

    Siblings whose subtrees are equal in names and kinds become one row: `layers.{0..31}.weight`. Sibling leaves that
    end a row together need equal kinds, or kinds of one family where `families` gives the family of each kind.

    >>> [str(row) for row in fold([("a.0.w", 1), ("a.1.w", 1), ("a.2.w", 1), ("b.w", 2)])]
    ['a.{0..2}.w', 'b.w']
    """
    root: _Node[K] = _Node()
    same: dict[K, K] = {}
    for name, kind in items:
        node = root
        for segment in name.split(".", _DEPTH - 1):
            below = node.children.get(segment)
            if below is None:
                below = node.children[segment] = _Node()
            node = below
        node.kinds.append(same.setdefault(kind, kind))
    _identify(root, {})
    return _rows(root, (), families or {})


def pattern_text(pattern: Sequence[Sequence[str]], *, longest: int = 0, ellipsis: str = "…") -> str:
    """A pattern as a person writes it: `layers.{0..31}.{weight,bias}`.

    `longest` above zero is the most alternatives of one segment to spell out before the middle is left out.
    """
    return ".".join(choice_text(segment, longest=longest, ellipsis=ellipsis) for segment in pattern)


def choice_text(alternatives: Sequence[str], *, longest: int = 0, ellipsis: str = "…") -> str:
    """Alternatives of one segment: `{0..31}` for words that count on, `{a,b}` for others, the bare word for one.

    What all begin with stands before the brace, as a shell would have it: `mlp_{core,gate}`.

    >>> choice_text(["0", "1", "2", "5"]), choice_text(["layer1", "layer2", "layer3"]), choice_text(["weight"])
    ('{0..2,5}', 'layer{1..3}', 'weight')
    """
    if len(alternatives) == 1:
        return alternatives[0]
    head = _common_head(alternatives)
    runs = list(_runs([word[len(head) :] for word in alternatives]))
    texts = [text for run in runs for text in ([_run_text(run)] if len(run) > 2 else run)]
    if longest and len(texts) > longest:
        texts = [*texts[: longest - 1], f"{ellipsis} {len(texts) - longest} more", texts[-1]]
    return head + "{" + ",".join(texts) + "}"


class _Node(Generic[K]):
    """A segment of names: the kinds of the names that end here, and what follows. Equal subtrees have one identity."""

    __slots__ = ("children", "identity", "kinds")

    def __init__(self) -> None:
        self.kinds: list[K] = []
        self.children: dict[str, _Node[K]] = {}
        self.identity = 0


def _identify(node: _Node[K], known: dict[Hashable, int]) -> int:
    """Number `node` and all below it, so that subtrees are compared by one number each. Equal kinds are one object."""
    below = tuple(
        (name, *map(id, child.kinds), _identify(child, known) if child.children else _LEAF)
        for name, child in node.children.items()
    )
    node.identity = known.setdefault(below, len(known))
    return node.identity


_LEAF: Final = -1
"""The number of what has nothing below it."""


def _rows(node: _Node[K], head: _Pattern, families: Mapping[K, Hashable]) -> list[Row[K]]:
    """The rows below `node`, behind the pattern `head`. Siblings that are alike stand where the first of them does."""
    leaves: dict[Hashable, list[tuple[str, K]]] = {}
    trees: dict[int, tuple[list[str], _Node[K]]] = {}
    groups: dict[Hashable, Callable[[], list[Row[K]]]] = {}
    for name, child in node.children.items():
        for kind in child.kinds:
            family = families.get(kind, kind)
            alike = leaves.setdefault(family, [])
            alike.append((name, kind))
            groups.setdefault(("leaves", family), partial(_leaf_rows, alike, head))
        if child.children:
            names, first = trees.setdefault(child.identity, ([], child))
            names.append(name)
            groups.setdefault(("tree", child.identity), partial(_tree_rows, names, first, head, families))
    return [row for rows in groups.values() for row in rows()]


def _leaf_rows(leaves: Sequence[tuple[str, K]], head: _Pattern) -> list[Row[K]]:
    """Sibling leaves of one family: together while they are few or alike, else one row for each kind."""
    by_kind: dict[K, list[str]] = {}
    for name, kind in leaves:
        by_kind.setdefault(kind, []).append(name)
    if len(by_kind) > 1 and len(leaves) <= _LEAVES:
        return [Row((*head, tuple(name for name, _ in leaves)), tuple(kind for _, kind in leaves))]
    return [Row((*head, tuple(names)), (kind,)) for kind, names in by_kind.items()]


def _tree_rows(names: Sequence[str], first: _Node[K], head: _Pattern, families: Mapping[K, Hashable]) -> list[Row[K]]:
    """The rows that siblings have in common, told by the first of them."""
    return _rows(first, (*head, tuple(names)), families)


def _common_head(words: Sequence[str]) -> str:
    """What all words begin with, up to an underscore or to the numbers that tell them apart: `mlp_`, `layer`."""
    heads = {_numbered(word) for word in words}
    if len({head for head, _ in heads}) == 1 and all(digits for _, digits in heads):
        return next(iter(heads))[0]
    first, last = min(words), max(words)
    shared = first[
        : next((i for i, pair in enumerate(zip(first, last, strict=False)) if len(set(pair)) > 1), len(first))
    ]
    head = shared[: shared.rfind("_") + 1]
    return head if len(head) > 1 and all(len(word) > len(head) for word in words) else ""


def _runs(words: Sequence[str]) -> Iterator[list[str]]:
    """The words in order, those that count on from one another together."""
    run: list[str] = []
    for word in words:
        if run and not _follows(run[-1], word):
            yield run
            run = []
        run.append(word)
    yield run


def _follows(a: str, b: str) -> bool:
    """Whether `b` is `a` with its number one higher: `2` after `1`, `layer2` after `layer1`."""
    (head, first), (other, second) = _numbered(a), _numbered(b)
    return bool(first and second) and head == other and int(second) == int(first) + 1


def _numbered(word: str) -> tuple[str, str]:
    """A word and the integer at its end, "" where there is none that is written the usual way."""
    head = word.rstrip("0123456789")
    digits = word[len(head) :]
    usual = digits and len(digits) < _DIGITS and (digits == "0" or digits[0] != "0")
    return (head, digits) if usual else (word, "")


_DIGITS: Final = 19
"""Longer numbers are no positions."""


def _run_text(run: Sequence[str]) -> str:
    return f"{run[0]}..{_numbered(run[-1])[1]}"
