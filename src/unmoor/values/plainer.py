"""Which pickled objects have a plain value that says all they say, and which. One row a class.

`unmoor convert` writes that value in their place, so that torch's safe loading takes the file; documentation is made of
this table. Anything that is code itself (a function, a class, a functools.partial), and any object that hides its
content from an inert reading, has none. Must not know torch or numpy.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["FIRST", "JOINED", "LISTED", "PLAINER", "Plainer"]


class Plainer(NamedTuple):
    """A kind of object, and what is written for it."""

    what: str
    becomes: str


PLAINER: Final = (
    Plainer("argparse.Namespace, types.SimpleNamespace, a dataclass, any object that is its attributes", "a dict"),
    Plainer("a class derived from dict (EasyDict, AttributeDict, Munch, addict.Dict)", "a dict"),
    Plainer("OmegaConf's DictConfig and ListConfig", "a dict, a list; interpolations as their text"),
    Plainer("a class derived from list, a collections.deque, a range", "a list"),
    Plainer("a named tuple, any class derived from tuple, a slice", "a tuple"),
    Plainer("a class derived from str, int or float", "the str, int or float"),
    Plainer("an enum member", "its value"),
    Plainer("pathlib paths, uuid.UUID, decimal.Decimal, fractions.Fraction", "a str"),
    Plainer("dates and times", "a str, as ISO 8601 has it; a timedelta its seconds"),
    Plainer("a frozenset", "a set"),
    Plainer("a collections.defaultdict, whatever its factory", "a dict"),
    Plainer("a numpy array of numbers", "a tensor; unmoor.load gives it back as an array"),
    Plainer("a numpy array of text or of objects", "nested lists"),
    Plainer("a numpy scalar", "a number, a str"),
    Plainer("a numpy dtype, a torch layout or memory format", "a str"),
)
"""What is written for what; all else is refused, or left out on request."""

_KINDS: Final = {"": "/", "Pure": "/", "Posix": "/", "PurePosix": "/", "Windows": "\\", "PureWindows": "\\"}

JOINED: Final = {f"pathlib{m}.{kind}Path": sep for m in ("", "._local") for kind, sep in _KINDS.items()}
"""Path classes, which are pickled as their parts -> what joins these."""

FIRST: Final = frozenset({"decimal.Decimal", "fractions.Fraction", "numpy.dtype"})
"""Classes whose text is their first argument."""

LISTED: Final = frozenset({"collections.deque"})
"""Classes that are called with what they hold."""
