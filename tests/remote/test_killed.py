"""SIGKILL amid a save to S3: the older object or the new one is there, whole; the next save is in nobody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from .conftest import KEYS

SCRIPT = """
import os, signal
from unmoor.execute.remote import publish_remote, written_draft
from unmoor.remote import drafts

drafts.PART = 5 << 20
with publish_remote({url!r}, needed=11 << 20, check=lambda hidden: None) as hidden:
    draft = written_draft(hidden)
    for number in range({pieces}):
        draft.write(b"n" * (1 << 20), keep=not number)
    draft._settle()
    {then}
"""

NEW = b"n" * (11 << 20)


@pytest.mark.parametrize(
    ("place", "older"),
    [("before a part", b""), ("between parts", b"older"), ("before the end", b""), ("at the end", b"older")],
)
def test_a_killed_save_leaves_one_whole_object_or_none(store, place, older):
    """Nothing of an upload is to be seen until it is completed; the next save to the name goes through."""
    url, name = f"{store.url}/run/step.pt", f"{store.bucket}/run/step.pt"
    if older:
        store.behind.pipe_file(name, older)
    pieces = {"before a part": 1, "between parts": 6}.get(place, 11)
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    script = SCRIPT.format(url=url, pieces=pieces, then="pass" if place == "at the end" else kill)
    there = {"ENDPOINT_URL": store.proxy.url, **{key.upper(): value for key, value in KEYS.items()}}
    environment = {**os.environ, **{f"FSSPEC_S3_{key}": value for key, value in there.items()}}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE) as process:
        if place == "at the end":
            store.proxy.fail("complete", process.kill)
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, said
    found = store.behind.cat_file(name) if store.names() else b""
    assert found in ((older, NEW) if place == "at the end" else (older,))
    assert store.names() == (["run/step.pt"] if found else [])
    again = SCRIPT.format(url=url, pieces=11, then="pass")
    if place == "between parts":
        subprocess.run([sys.executable, "-c", again], env=environment, check=True, timeout=60)
        assert store.behind.cat_file(name) == NEW
        assert not store.uploads()  # this server says of every upload that it was begun years ago
