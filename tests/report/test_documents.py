"""The JSON document: strict, stable, and complete."""

from __future__ import annotations

import json

import pytest

from unmoor.report.documents import SCHEMA, catalog_document, document_text
from unmoor.values.finding import Finding

from .catalogs import catalog, danger, opaque, part, tensor, training_checkpoint
from .golden import check_golden


def test_the_document_of_a_checkpoint():
    """Every key and value of a small checkpoint's document, as programs read it."""
    entries = [tensor(("model", "weight"), (2, 3), device="cuda:7")]
    finding = Finding("numpy-scalar", "info", "epoch", "is a numpy scalar")
    found = catalog([(part("model", ("model",), entries), entries)], findings=[finding], tree={"model": {}})
    check_golden("document", document_text(catalog_document(found)))


def test_the_text_is_the_document():
    """The lines that people compare hold exactly the document."""
    document = catalog_document(training_checkpoint())
    assert json.loads(document_text(document)) == document


def test_the_document_is_stable():
    """The same file gives the same text."""
    assert document_text(catalog_document(training_checkpoint())) == document_text(
        catalog_document(training_checkpoint())
    )


def test_keys_that_others_build_on():
    """The schema is named and the keys of the design stand at the top."""
    document = catalog_document(catalog())
    assert document["schema"] == SCHEMA
    assert list(document) == [
        "schema",
        "content",
        "safety",
        "world_size",
        "writer",
        "created",
        "objects",
        "wrapped",
        "dtypes",
        "path",
        "format",
        "dialect",
        "size",
        "facts",
        "devices",
        "roles",
        "parts",
        "globals",
        "findings",
        "tensors",
    ]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        ((1, 2), [1, 2]),
        ({3, 1}, [1, 3]),
        ({1: {"a": None}}, {"1": {"a": None}}),
        (1 << 5000, "<int of 5001 bits>"),
        (b"\x00", "b'\\x00'"),
        (True, True),
    ],
)
def test_values_that_json_lacks_become_text(value, told):
    """The document is strict JSON whatever the detail of a part holds."""
    document = catalog_document(catalog([(part("scheduler", ("s",), value=value), [])]))
    parsed = json.loads(document_text(document), parse_constant=pytest.fail)
    assert parsed["parts"][0]["detail"]["value"] == told


def test_names_of_any_script_are_written_in_ascii():
    """The text passes through every terminal and pipe unchanged, and parses back to the same names."""
    entries = [tensor(("größe", "\ud800", "\x1b"))]
    text = document_text(catalog_document(catalog([(part("model", (), entries), entries)])))
    assert text.isascii()
    assert json.loads(text)["tensors"][0]["path"] == "größe.\ud800.\x1b"


def test_objects_that_need_code_become_text():
    """An inert object in a detail is told by its name and never opened."""
    document = catalog_document(catalog([(part("extra", ("s",), value=opaque("x.Y", 1)), [])]))
    assert document["parts"][0]["detail"]["value"] == "<x.Y(1), not built>"


@pytest.mark.parametrize(
    ("options", "level"),
    [({}, "safe"), ({"tree": opaque("x.Y")}, "code"), ({"findings": [danger()]}, "danger")],
)
def test_safety_is_a_word(options, level):
    """Programs can refuse a file by one key."""
    assert catalog_document(catalog(**options))["safety"]["level"] == level
