"""What a manifest says of storages is parsed late, and reads as it does when it is parsed at once."""

from __future__ import annotations

import json

import pytest

from unmoor.values.manifests import Rows, parsed

MANY = {str(key): [64 * key, 8, 123 + key] for key in range(5000)}
ROWS = json.dumps(MANY, separators=(",", ":"))
PLAIN = f'{{"manifest":1,"storages":{ROWS}}}'
LATE = {
    "as unmoor.save writes it": PLAIN,
    "checksums left out": json.dumps(
        {"a": 1, "storages": {key: [*row[:2], None] for key, row in MANY.items()}}, separators=(",", ":")
    ),
    "storages twice": PLAIN.replace('"manifest":1', '"storages":{},"manifest":1'),
}
AT_ONCE = {
    "spaces": json.dumps({"manifest": 1, "storages": MANY}),
    "not the last": f'{{"manifest":1,"storages":{ROWS},"more":2}}',
    "one level down": f'{{"manifest":1,"inner":{{"a":1,"storages":{ROWS}}}}}',
    "the only value": f'{{"storages":{ROWS}}}',
    "a row of another form": PLAIN.replace("[64,8,124]", '{"offset":64}'),
    "a name with an escape": PLAIN.replace('"4999"', '"4999\\u0041"'),
    "few": '{"manifest":1,"storages":{"0":[64,8,123]}}',
}
BROKEN = {
    "a comma too many": PLAIN[:-2] + ",}}",
    "a row cut short": PLAIN.replace("[64,8,124]", "[64,8]") + "}",
    "a number with a zero before it": PLAIN.replace("[64,8,124]", "[064,8,124]"),
    "not closed": PLAIN[:-1],
    "within a text": PLAIN.replace('{"manifest":1', '{"manifest":"1'),
    "no object before it": f',"storages":{ROWS}}}',
    "bytes after it": PLAIN + "x",
}


@pytest.mark.parametrize(("text", "late"), [(LATE[k], True) for k in LATE] + [(AT_ONCE[k], False) for k in AT_ONCE],
                         ids=[*LATE, *AT_ONCE])  # fmt: skip
def test_it_reads_as_json_does(text, late):
    """Keys, their order and values; only what stands as unmoor.save writes it is left for later."""
    made, due = parsed(text.encode()), json.loads(text)
    assert (type(made.get("storages")) is Rows) == late
    assert made == due
    assert list(made) == list(due)
    assert repr(made) == repr(due)


@pytest.mark.parametrize("why", BROKEN)
def test_what_is_no_json_is_refused_at_once(why):
    """Late means that it was seen to be sound."""
    with pytest.raises(ValueError, match=r".") as ours:
        parsed(BROKEN[why].encode())
    with pytest.raises(ValueError, match=r".") as theirs:
        json.loads(BROKEN[why])
    assert str(ours.value) == str(theirs.value)
