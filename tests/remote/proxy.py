"""A proxy for HTTP that counts what passes, and can make any request fail in the ways that servers and networks do."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

__all__ = ["Fault", "Proxy", "Request", "proxy_of"]

ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message></Error>"
CANNED = {
    "503": (503, ERROR.format("SlowDown", "Please reduce your request rate.").encode()),
    "404": (404, ERROR.format("NoSuchKey", "The key does not exist.").encode()),
    "403": (403, ERROR.format("AccessDenied", "Access Denied").encode()),
}


@dataclass(frozen=True)
class Request:
    """What was asked: `nbytes` were sent back of what the server has, `span` is the range that was asked for."""

    method: str
    path: str
    query: str
    span: tuple[int, int] | None
    nbytes: int
    status: int

    @property
    def operation(self) -> str:
        """What it is in the words of S3."""
        if self.method == "POST":
            return "complete" if "uploadId" in self.query else "create" if "uploads" in self.query else "post"
        if self.method == "PUT":
            return "part" if "partNumber" in self.query else "put"
        if self.method == "DELETE":
            return "abort" if "uploadId" in self.query else "delete"
        if self.method == "GET":
            return "list" if "list-type" in self.query or "prefix" in self.query else "get"
        return self.method.lower()


@dataclass
class Fault:
    """What happens to the requests of one operation, `skip` of them let through first, `times` of them hit.

    how: "503", "403" or "404" answer in place of the server; "drop" sends half of the body and hangs up, "cut" the same
    with a length that fits; "swallow" lets the server act and loses its answer; "refuse" hangs up at once; "slow" waits
    `seconds`; a function is called before the request passes.
    """

    operation: str
    how: str | Callable[[], None]
    times: int = 1
    skip: int = 0
    seconds: float = 0.0
    hit: int = 0

    def takes(self, operation: str) -> bool:
        if operation != self.operation:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.hit >= self.times:
            return False
        self.hit += 1
        return True


@dataclass
class Proxy:
    """`url` is where it listens; `seen` are all requests, in the order in which they ended."""

    url: str
    seen: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        self.seen.clear()
        self.faults.clear()

    def fail(self, operation: str, how: str | Callable[[], None], **more: object) -> Fault:
        fault = Fault(operation, how, **more)
        self.faults.append(fault)
        return fault

    def of(self, *operations: str) -> list[Request]:
        return [request for request in self.seen if request.operation in operations]

    def bytes_read(self) -> int:
        return sum(request.nbytes for request in self.of("get"))


@contextmanager
def proxy_of(server: str) -> Iterator[Proxy]:  # noqa: C901 - one handler, which sees the proxy
    """A proxy in front of `server`, a URL."""
    target = urlsplit(server)
    proxy = Proxy("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing: the tests look at `seen`."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            where = urlsplit(self.path)
            span = None
            if (asked := self.headers.get("Range")) is not None:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                span = (int(first), int(last) + 1)
            draft = Request(self.command, unquote(where.path), where.query, span, 0, 0)
            with proxy.lock:
                fault = next((fault for fault in proxy.faults if fault.takes(draft.operation)), None)
            how = None if fault is None else fault.how
            if callable(how):
                how()
            if how == "slow":
                time.sleep(fault.seconds)
            canned = CANNED.get(str(how))
            if how == "refuse":
                self.note(draft, 0, 0)
                self.hang_up()
                return
            status, headers, data = (canned[0], [], canned[1]) if canned else self.answer(body)
            if how == "swallow":
                self.note(draft, 0, status)
                self.hang_up()
                return
            self.send(draft, status, headers, data, str(how))

        def send(self, draft: Request, status: int, headers: list[tuple[str, str]], data: bytes, how: str) -> None:
            length = next((value for key, value in headers if key.lower() == "content-length"), str(len(data)))
            sent = data[: len(data) // 2] if how in ("drop", "cut") else data
            self.send_response(status)
            for key, value in headers:
                if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(sent)) if how == "cut" else length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(sent)
            self.note(draft, len(sent) if self.command == "GET" else 0, status)
            if how == "drop":
                self.wfile.flush()
                self.hang_up()

        def answer(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(target.hostname, target.port, timeout=60)
            try:
                headers = {key: value for key, value in self.headers.items() if key.lower() != "connection"}
                connection.request(self.command, self.path, body=body, headers=headers)
                found = connection.getresponse()
                return found.status, found.getheaders(), found.read()
            finally:
                connection.close()

        def hang_up(self) -> None:
            self.close_connection = True
            self.connection.close()

        def note(self, draft: Request, nbytes: int, status: int) -> None:
            with proxy.lock:
                proxy.seen.append(Request(draft.method, draft.path, draft.query, draft.span, nbytes, status))

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    server_ = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server_.daemon_threads = True
    thread = threading.Thread(target=server_.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    proxy.url = f"http://127.0.0.1:{server_.server_address[1]}"
    try:
        yield proxy
    finally:
        server_.shutdown()
        server_.server_close()
