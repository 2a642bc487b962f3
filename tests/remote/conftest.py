"""One S3-speaking server for all tests here, with a bucket of its own for each."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from .proxy import Proxy, proxy_of

KEYS = {"key": "a-key-of-nobody", "secret": "a-secret-of-nobody"}


@dataclass
class Store:
    """A bucket behind a proxy. `url` is where its objects are, `behind` a file system that does not pass the proxy."""

    url: str
    proxy: Proxy
    behind: Any

    @property
    def bucket(self) -> str:
        return self.url.removeprefix("s3://")

    def names(self) -> list[str]:
        self.behind.invalidate_cache()
        return sorted(name.removeprefix(f"{self.bucket}/") for name in self.behind.find(self.bucket))

    def uploads(self) -> list[str]:
        return [row["Key"] for row in self.behind.list_multipart_uploads(self.bucket)]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of the server. It listens on a port of the system's choice."""
    pytest.importorskip("s3fs", reason="the tests of S3 need s3fs and moto: pip install -e '.[dev]'")
    moto = pytest.importorskip("moto.server", reason="the tests of S3 need s3fs and moto: pip install -e '.[dev]'")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        yield f"http://127.0.0.1:{running.get_host_and_port()[1]}"
    finally:
        running.stop()


@pytest.fixture(scope="session")
def proxy(server: str) -> Iterator[Proxy]:
    with proxy_of(server) as running:
        yield running


@pytest.fixture
def store(server: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty bucket; the process's own settings for s3:// lead to it through the proxy."""
    import fsspec
    import s3fs

    from unmoor.remote import stores

    monkeypatch.setattr(stores, "PAUSE", 0.001)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    once = {"retries": {"max_attempts": 0}}  # what is tried again here is what unmoor does
    monkeypatch.setitem(fsspec.config.conf, "s3", {**KEYS, "endpoint_url": proxy.url, "config_kwargs": once})
    behind = s3fs.S3FileSystem(**KEYS, endpoint_url=server)
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    behind.mkdir(name)
    proxy.clear()
    yield Store(f"s3://{name}", proxy, behind)
    proxy.clear()
