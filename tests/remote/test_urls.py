"""URLs as text: what is one, what of it may be shown, and what is said where it cannot be opened."""

from __future__ import annotations

import pathlib
import pickle
import subprocess
import sys

import pytest
import torch

import unmoor
from unmoor import filing, places, urls
from unmoor.errors import NotACheckpoint, UnmoorError, UsageError

PASSWORD = "pa55%40word"
TOKEN = "AbCdEf0123%2Fsig"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("s3://bucket/x.pt", True), ("memory://x.pt", True), ("simplecache::s3://bucket/x.pt", True),
        ("zip://a/x.pt::gs://bucket/x.zip", True), ("HTTPS://host/x.pt", True), ("hf://user/model/x.pt", True),
        ("C://folder/x.pt", False), ("C:\\folder\\x.pt", False), ("./s3://x.pt", False), ("s3:/bucket/x.pt", False),
        ("runs/step_1.pt", False), ("", False), ("a:b", False),
    ],
)  # fmt: skip
def test_what_a_url_is(path, found):
    """Two letters at least and `://`: a drive of Windows is none."""
    assert urls.is_url(path) == found


@pytest.mark.parametrize(
    ("url", "join", "parent", "name"),
    [
        ("s3://b/run/x.pt", "s3://b/run/x.pt/n", "s3://b/run", "x.pt"),
        ("s3://b", "s3://b/n", "s3://", "b"),
        ("memory://x.pt", "memory://x.pt/n", "memory://", "x.pt"),
        ("memory://", "memory://n", "memory://", ""),
        ("s3://b/run/", "s3://b/run/n", "s3://b", "run"),
        ("zip://a/x.pt::s3://b/x.zip", "zip://a/x.pt/n::s3://b/x.zip", "zip://a::s3://b/x.zip", "x.pt"),
        ("filecache::s3://b/x.pt", "filecache::s3://b/x.pt/n", "filecache::s3://b", "x.pt"),
        ("https://h/f/x.pt?a=1", "https://h/f/x.pt/n?a=1", "https://h/f?a=1", "x.pt"),
    ],
)
def test_parts_of_a_url(url, join, parent, name):
    """Joined, cut and named by its path alone: queries and what a chain leads through stay where they are."""
    assert places.join(url, "n") == join
    assert places.parent(url) == parent
    assert places.name_of(url) == name


SECRET = [
    f"sftp://me:{PASSWORD}@host/run/x.pt",
    f"https://{TOKEN}@host/x.pt",
    f"https://me:{PASSWORD}@host/x.pt?X-Amz-Signature={TOKEN}&Expires=100000",
    f"simplecache::ftp://me:{PASSWORD}@host/x.pt",
]


@pytest.mark.parametrize("url", SECRET)
def test_no_secret_is_in_the_name_of_a_url(url):
    """What is known of a URL has neither password nor token, and what opens it has both; a folder's children too."""
    known = filing.path_text(url)
    assert PASSWORD not in known
    assert TOKEN not in known
    assert urls.real(known) == url
    assert filing.path_text(known) == known
    child = urls.real(places.join(known, "inner", "y.pt"))
    assert child == places.join(url, "inner", "y.pt")
    hushed = urls.hushed(f"GET {url}")
    assert PASSWORD not in hushed
    assert TOKEN not in hushed


@pytest.mark.parametrize(
    "call",
    [
        lambda url: unmoor.describe(url),
        lambda url: unmoor.load(url),
        lambda url: unmoor.verify(url),
        lambda url: unmoor.diff(url, url),
        lambda url: unmoor.save(url, {"x": torch.ones(3)}),
        lambda url: unmoor.convert("memory://urls/sound.pt", url),
        lambda url: unmoor.restore(url, model=torch.nn.Linear(2, 2)),
        lambda url: unmoor.save(url, {"x": torch.ones(3)}, background=True).wait(),
    ],
)
@pytest.mark.parametrize("scheme", ["http://me:{}@127.0.0.1:9/x.pt?sig={}", "ftp://me:{}@127.0.0.1:9/x.pt"])
def test_no_secret_is_in_an_error(call, scheme, monkeypatch):
    """Whatever fails, and whichever library says why: message, repr, path and cause hold no password and no token."""
    from unmoor.remote import stores

    monkeypatch.setattr(stores, "PAUSE", 0.0)
    unmoor.save("memory://urls/sound.pt", {"x": torch.ones(3)})
    with pytest.raises(UnmoorError) as caught:
        call(scheme.format(PASSWORD, TOKEN))
    error: BaseException | None = caught.value
    while error is not None:
        shown = f"{error} {error!r} {getattr(error, 'path', '')} {pickle.dumps(str(error))!r}"
        for secret in (PASSWORD, TOKEN, urls.unquote(PASSWORD), urls.unquote(TOKEN)):
            assert secret not in shown
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert "127.0.0.1" in str(caught.value)


def test_no_secret_is_in_what_is_made(tmp_path):
    """Receipts, catalogs and manifests hold the URL as it is known."""
    url = f"simplecache::memory://me:{PASSWORD}@urls/x.pt"
    known = filing.path_text(url)
    assert PASSWORD not in known
    made = unmoor.save(f"memory://me:{PASSWORD}@urls/y.pt", {"x": torch.ones(3)})
    catalog = unmoor.describe(f"memory://me:{PASSWORD}@urls/y.pt")
    for shown in (str(made), repr(made), str(made.to_json()), str(catalog), repr(catalog), str(catalog.to_json())):
        assert PASSWORD not in shown


@pytest.mark.parametrize("made", ["s3://bucket/x.pt", "memory://x.pt"])
def test_a_url_that_pathlib_has_spoilt_is_told(made):
    """Pathlib makes one slash of two; the error gives the text to pass."""
    with pytest.raises(UsageError, match="pathlib has made one slash of two") as caught:
        unmoor.describe(pathlib.Path(made))
    assert made in str(caught.value)
    with pytest.raises(NotACheckpoint, match="pass URLs as text"):
        unmoor.describe(str(pathlib.Path(made)))


def test_a_file_url_is_a_path(tmp_path):
    """file:// is a path of this machine, with everything that holds of one."""
    unmoor.save(f"file://{tmp_path}/x.pt", {"x": torch.ones(3)})
    assert unmoor.describe(tmp_path / "x.pt").tensors[0].shape == (3,)
    assert unmoor.load(f"file://{tmp_path}/x.pt")["x"].sum() == 3
    assert unmoor.describe(f"file://{tmp_path}/x.pt").path == f"{tmp_path}/x.pt"


def test_an_unknown_scheme_is_told():
    """What fsspec does not know is named, with what to do."""
    with pytest.raises(UsageError, match="quux") as caught:
        unmoor.describe("quux://x.pt")
    assert caught.value.remedy


@pytest.mark.parametrize("verb", ["relocate", "undo_relocate", "repartition"])
def test_what_changes_files_in_place_refuses_urls(verb):
    """Verbs that work on files of this machine alone say so."""
    call = getattr(unmoor, verb)
    with pytest.raises(UsageError, match=f"unmoor.{verb} works on files of this machine"):
        call(*(["memory://x.pt", "memory://y"][: 2 if verb == "repartition" else 1]), **_MORE.get(verb, {}))


_MORE = {"relocate": {"to": "cpu"}, "repartition": {"ranks": 2}}

WITHOUT = """
import sys

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ImportError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Gone())
import unmoor
from unmoor.describe import describe_path
from unmoor.errors import UsageError
assert not [name for name in sys.modules if name.split(".")[0] in ("fsspec", "s3fs", "asyncio", "aiohttp")]
try:
    describe_path("s3://bucket/x.pt")
except UsageError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("fsspec",), ("unmoor[remote]", "s3fs", "s3://bucket/x.pt")),
        (("s3fs",), ("pip install s3fs", "s3://bucket/x.pt")),
    ],
)
def test_a_missing_package_is_named(missing, said):
    """Without fsspec, or what a scheme needs, a URL is an error that names the package; nothing else imports it."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in said), done.stdout
