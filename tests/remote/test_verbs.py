"""Every verb on URLs of every kind of store that can be had here: what it gives is what it gives of a file."""

from __future__ import annotations

import http.server
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

import unmoor
from unmoor import places
from unmoor.errors import CorruptFile, NotACheckpoint, SaveError, UsageError

from .runs import checkpoint, fresh, held, trained


@pytest.fixture
def base(request) -> str:
    """A folder of its own, in S3 where the test asks for that, else in memory."""
    if getattr(request, "param", "memory") == "s3":
        return f"{request.getfixturevalue('store').url}/runs"
    return f"memory://{uuid.uuid4().hex}/runs"


both = pytest.mark.parametrize("base", ["memory", "s3"], indirect=True)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@both
def test_a_run_goes_on_from_a_url(base):
    """save, plan, restore, load, describe, verify and diff, and a save over an older one."""
    url, (model, optimizer) = f"{base}/step_1.pt", trained()
    unmoor.save(url, model=model, optimizer=optimizer, rng=False, step=0)
    receipt = unmoor.save(url, model=model, optimizer=optimizer, rng=False, step=1)
    assert receipt.path == url
    assert receipt.nbytes == places.tree_bytes(url)
    state = fresh()
    assert "model" in str(unmoor.plan(url, model=state[0], optimizer=state[1], rng=False))
    report = unmoor.restore(url, model=state[0], optimizer=state[1], rng=False, verify="first")
    assert report.extra == {"step": 1}
    assert same(held(state), held((model, optimizer)))
    assert torch.equal(unmoor.load(url)["model"]["0.weight"], model[0].weight)
    assert unmoor.describe(url).path == url
    assert unmoor.verify(url).ok
    other = f"{base}/step_2.pt"
    unmoor.save(other, model=trained(1)[0], step=1)
    assert unmoor.diff(url, url).identical == 32
    assert unmoor.diff(url, other, only="model").identical < 8
    assert [entry.name for entry in places.entries(base)] == ["step_1.pt", "step_2.pt"]


TARGETS = [("memory", "model.safetensors"), ("memory", "old.pt"), ("memory", "shards"), ("s3", "folder")]


@pytest.mark.parametrize(("base", "target"), TARGETS, indirect=["base"])
def test_a_conversion_reads_and_writes_urls(base, target, tmp_path):
    """From a URL to a URL in each format, and from there to a file: nothing of the model is lost."""
    source, url = f"{base}/step.pt", f"{base}/made/{target}"
    unmoor.save(source, model=trained()[0])
    how = {
        "model.safetensors": {},
        "old.pt": {"format": "legacy"},
        "folder": {"format": "dcp"},
        "shards": {"max_shard_size": 400_000},
    }[target]
    made = unmoor.convert(source, url, only="model", **how)
    assert made.nbytes == places.tree_bytes(url)
    back = tmp_path / "back.pt"
    unmoor.convert(url, back)
    model = fresh()[0]
    unmoor.restore(back, model=model)
    assert same(dict(model.state_dict()), dict(trained()[0].state_dict()))
    assert unmoor.verify(url).ok
    with pytest.raises(UsageError, match="would be replaced"):
        unmoor.convert(source, source)


def test_a_folder_is_complete_at_last_or_not_at_all(base):
    """Data first, `.metadata` last; what a save that was cut off left is removed, a checkpoint is never replaced."""
    source, url = f"{base}/step.pt", f"{base}/folder"
    unmoor.save(source, model=trained()[0])
    unmoor.convert(source, url, format="dcp")
    names = {entry.name: entry for entry in places.entries(url)}
    assert max(names.values(), key=lambda entry: entry.changed).name == ".metadata"
    with pytest.raises(SaveError, match="no store exchanges one for another") as caught:
        unmoor.convert(source, url, format="dcp")
    assert "it holds a checkpoint, which stays as it is" in str(caught.value)
    places.remove(places.join(url, ".metadata"))
    with pytest.raises((NotACheckpoint, CorruptFile), match="metadata"):
        unmoor.describe(url)
    unmoor.convert(source, url, format="dcp")
    model = fresh()[0]
    unmoor.restore(url, model=model)
    assert same(dict(model.state_dict()), dict(trained()[0].state_dict()))
    places.remove(url)
    assert not places.exists(url)
    assert places.exists(source)


def test_a_folder_that_cannot_be_sent_leaves_nothing(store):
    """Where its last file fails, those before it are removed, here and there."""
    source, url = f"{store.url}/step.pt", f"{store.url}/folder"
    store.behind.pipe_file(f"{store.bucket}/step.pt", checkpoint())
    before = set(Path("/tmp").glob(".folder.unmoor-*"))
    store.proxy.fail("complete", "403", skip=2, times=100)
    with pytest.raises(SaveError, match="was not saved"):
        unmoor.convert(source, url, format="dcp")
    assert store.names() == ["step.pt"]
    assert not store.uploads()
    assert set(Path("/tmp").glob(".folder.unmoor-*")) == before


@both
def test_the_runs_of_a_folder_are_listed(base):
    """Runs and latest go through the same doors."""
    for step in (1, 2):
        unmoor.save(
            f"{base}/step_{step:09d}.pt", model=trained(step)[0], run={"step": step, "number": step, "version": 1}
        )
    latest = unmoor.latest(base)
    assert latest.step == 2
    assert latest.path == f"{base}/step_000000002.pt"
    assert [row.step for row in unmoor.runs(base).rows] == [2, 1]
    model = fresh()[0]
    unmoor.restore(latest, model=model)
    assert same(dict(model.state_dict()), dict(trained(2)[0].state_dict()))


@pytest.mark.parametrize("base", ["s3"], indirect=True)
def test_a_run_saves_and_resumes_behind_a_url(base):
    """unmoor.Run with a URL for its folder: what it kept is what goes on."""
    torch.manual_seed(0)
    model, optimizer = fresh(8)
    run = unmoor.Run(base, model=model, optimizer=optimizer, every=2, keep_last=2, background=False)
    for _ in run.steps(run.resume(), 5):
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    again = fresh(8)
    second = unmoor.Run(base, model=again[0], optimizer=again[1], every=2, keep_last=2, background=False)
    assert second.resume() == 5
    assert same(dict(again[0].state_dict()), dict(model.state_dict()))
    assert list(second.steps(5, 5)) == []


class Ranged(http.server.SimpleHTTPRequestHandler):
    """A server of files that serves ranges and tags, as any web server does; `plain` ones serve files whole alone."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str | None]] = []
    plain = False

    def log_message(self, *_):
        """Nothing."""

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        tag, asked = f'"{hash(data):x}"', self.headers.get("Range")
        type(self).seen.append((self.command, asked))
        first, last = 0, len(data)
        if self.headers.get("If-Match", tag) != tag:
            self.send_error(412)
            return
        if asked and not self.plain:
            low, _, high = asked.removeprefix("bytes=").partition("-")
            first, last = int(low), min(int(high) + 1, len(data))
        self.send_response(206 if asked and not self.plain else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(last - first))
        if not self.plain:
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Range", f"bytes {first}-{last - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first:last])

    do_HEAD = do_GET


@pytest.fixture
def web(tmp_path) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="http:// needs aiohttp")
    Ranged.seen.clear()
    Ranged.plain = False
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranged, directory=str(tmp_path)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_web_server_is_read_by_ranges(web, tmp_path):
    """http:// for reading: ranges alone, no file whole; there is nothing to write to."""
    (tmp_path / "step.pt").write_bytes(checkpoint())
    model = fresh()[0]
    unmoor.restore(f"{web}/step.pt", model=model)
    assert same(dict(model.state_dict()), dict(trained()[0].state_dict()))
    assert all(asked for command, asked in Ranged.seen if command == "GET")
    with pytest.raises(NotACheckpoint, match="does not exist"):
        unmoor.describe(f"{web}/none.pt")
    with pytest.raises(SaveError, match="for reading alone"):
        unmoor.save(f"{web}/new.pt", {"x": torch.ones(3)})


def test_a_file_of_a_web_server_that_is_replaced_is_never_mixed(web, tmp_path, monkeypatch):
    """The tag that was seen first goes with every request."""
    (tmp_path / "step.pt").write_bytes(checkpoint())
    from unmoor.wiring import restoring

    described = restoring.describe_path

    def replaced(path):
        made = described(path)
        (tmp_path / "step.pt").write_bytes(checkpoint(1))
        return made

    monkeypatch.setattr(restoring, "describe_path", replaced)
    with pytest.raises(CorruptFile, match="was replaced while it was read"):
        unmoor.restore(f"{web}/step.pt", model=fresh()[0])


def test_a_web_server_without_ranges_is_told(web, tmp_path):
    """A server that gives files whole alone: the remedy is to download it first."""
    (tmp_path / "step.pt").write_bytes(checkpoint())
    Ranged.plain = True
    with pytest.raises(UsageError, match="cannot be read in parts") as caught:
        unmoor.describe(f"{web}/step.pt")
    assert "Download it first" in caught.value.remedy


def test_an_object_in_memory_that_is_replaced_is_never_mixed(monkeypatch):
    """A store without tags is asked at each read."""
    import fsspec

    url = f"memory://{uuid.uuid4().hex}.pt"
    memory = fsspec.filesystem("memory")
    memory.pipe_file(url, checkpoint())
    from unmoor.wiring import restoring

    described = restoring.describe_path

    def replaced(path):
        made = described(path)
        memory.pipe_file(url, checkpoint(1))
        return made

    monkeypatch.setattr(restoring, "describe_path", replaced)
    with pytest.raises(CorruptFile, match="was replaced while it was read"):
        unmoor.restore(url, model=fresh()[0])


def test_an_object_inside_of_an_archive_is_read(tmp_path):
    """A chain of file systems: a file in a zip."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "runs.zip", "w") as archive:
        archive.writestr("run/step.pt", checkpoint())
    model = fresh()[0]
    unmoor.restore(f"zip://run/step.pt::file://{tmp_path}/runs.zip", model=model)
    assert same(dict(model.state_dict()), dict(trained()[0].state_dict()))
