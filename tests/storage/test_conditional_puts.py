"""What the drivers put on the wire for an exclusive create: the condition, on every write.

Real drivers against a server on loopback that knows nothing but the conditions of the three object
stores. A driver that drops its condition would win where it must lose.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from local_drivers import DRIVERS

from durable_shuffle.serialization.errors import ConflictError, CorruptDataError
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage import fsspec_backend as fsspec_storage
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.retrying import RetryingStorage

THEIRS = b"theirs, id 7"
REFUSALS = {
    "s3": (412, "PreconditionFailed"),
    "gcs": (412, ""),
    "azure": (409, "BlobAlreadyExists"),
}


class Judging:
    """A server with one object: a write with a condition is refused, one without takes effect."""

    def __init__(self, driver: str) -> None:
        self.taken = False
        self.conditional: list[bool] = []
        """Whether each write had its condition."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = parse_qs(urlsplit(self.path).query)
                condition = (
                    asked.get("ifGenerationMatch") == ["0"]
                    if driver == "gcs"
                    else self.headers.get("If-None-Match") == "*"
                )
                outer.conditional.append(condition)
                if condition and outer.taken:
                    self.answer(*REFUSALS[driver])
                else:
                    self.answer(201 if driver == "azure" else 200, "")

            do_POST = do_PUT

            def do_GET(self) -> None:
                self.answer(200, "", THEIRS)

            def answer(self, status: int, code: str, body: bytes | None = None) -> None:
                error = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                body = (
                    (error if code else b"{}" if driver == "gcs" else b"") if body is None else body
                )
                self.send_response(status)
                for name, value in (
                    ("ETag", '"0x1"'),
                    ("Last-Modified", "Sat, 21 Nov 2026 13:00:30 GMT"),
                    ("Content-Length", str(len(body))),
                    ("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}"),
                    ("Content-Type", "application/json" if driver == "gcs" else "application/xml"),
                    *((("x-ms-error-code", code),) if code and driver == "azure" else ()),
                ):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> str:
    """One of the three."""
    return str(request.param)


@pytest.fixture
def server(driver: str) -> Iterator[Judging]:
    """A server for it."""
    judging = Judging(driver)
    threading.Thread(target=judging.server.serve_forever, daemon=True).start()
    yield judging
    judging.server.shutdown()
    judging.server.server_close()


def test_every_write_carries_the_condition(driver: str, server: Judging) -> None:
    """The first create wins; with the key taken, the server's refusal is `Exists` or a conflict."""
    storage = DRIVERS[driver](server.url)
    assert storage.put_if_absent("a", b"mine, id 1") == Created()
    storage.put("b", [b"mine, ", b"id 2"])
    server.taken = True
    assert storage.put_if_absent("a", b"mine, id 3") == Exists(THEIRS)
    with pytest.raises(ConflictError, match="a exists already"):
        storage.put("a", [b"mine, ", b"id 4"])
    assert server.conditional == [True] * 4, "one request per create, each with its condition"


def test_an_overlong_object_in_a_slot_is_damage(
    driver: str, server: Judging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it to go away: it is no outage."""
    monkeypatch.setattr(fsspec_storage, "MOST_BYTES", len(THEIRS) - 1)
    server.taken = True
    storage = RetryingStorage(DRIVERS[driver](server.url))
    with pytest.raises(CorruptDataError, match="log/0000000003 is too long, expected at most 11"):
        SlotLog(storage, "log/").append(3, b"mine")
    assert (storage.counts.retries, len(server.conditional)) == (0, 1)
