"""Drivers report the first failure, and the storage's wish to be left alone reaches our layer.

Real drivers against a server on loopback that refuses everything: what counts is how many requests
it saw.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from local_drivers import DRIVERS
from small_stage import ManualClock

from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.retry import Backoff
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.errors import retry_after
from durable_shuffle.shuffle.storage.retrying import RetryingStorage, StorageRetries

S3_BODY = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
GCS_BODY = b'{"error": {"code": 503, "message": "backendError"}}'
AZURE_BODY = b"<Error><Code>ServerBusy</Code><Message>busy</Message></Error>"


class Refusing:
    """A server that answers every request with 503 and counts them by method."""

    def __init__(self, body: bytes, headers: dict[str, str]) -> None:
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def refuse(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append(self.command)
                self.send_response_only(503)  # without a Date of its own
                for name, value in headers.items():
                    self.send_header(name, value)
                answer = b"" if self.command == "HEAD" else body
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = refuse

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Refusing":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


BODIES = {"s3": S3_BODY, "gcs": GCS_BODY, "azure": AZURE_BODY}
CALLS: dict[str, Callable[[Storage], Any]] = {
    "read": lambda s: s.read("a"),
    "read_range": lambda s: s.read_range("a", 0, 3),
    "put_if_absent": lambda s: s.put_if_absent("a", b"mine"),
    "put": lambda s: s.put("a", [b"mine"]),
    "delete": lambda s: s.delete(["a"]),
    "list": lambda s: list(s.list("")),
}


@contextmanager
def refused(
    driver: str, headers: dict[str, str] | None = None
) -> Iterator[tuple[Refusing, Storage]]:
    """A storage whose server refuses everything."""
    with Refusing(BODIES[driver], headers or {}) as server:
        yield server, DRIVERS[driver](server.url)


@pytest.mark.sampled(4)
@pytest.mark.requirement("R-F232-22")
@pytest.mark.parametrize("verb", list(CALLS))
@pytest.mark.parametrize("driver", list(DRIVERS))
def test_retries_do_not_multiply(driver: str, verb: str) -> None:
    """Three retries of ours are four times the requests of one try, which tries nothing again.

    One try of a write may read back once, to settle an outcome that 503 leaves open.
    """
    with refused(driver) as (server, bare):
        with pytest.raises(DurableShuffleError):
            CALLS[verb](bare)
        once = list(server.requests)
        assert once.count("PUT") + once.count("POST") + once.count("DELETE") <= 1
        assert len(once) <= 2, once
        server.requests.clear()
        clock = ManualClock(0.0, [])
        patient = RetryingStorage(bare, StorageRetries(Backoff.fixed(3, 1.0)), clock=clock)
        with pytest.raises((UnavailableError, OutcomeUnknownError), match="tries=4"):
            CALLS[verb](patient)
        assert server.requests == once * 4
        assert clock.pauses == [1.0] * 3


@pytest.mark.sampled(3)
@pytest.mark.requirement("R-F232-21")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"Retry-After": "Sat, 21 Nov 2026 13:00:30 GMT"}, None),
        (
            {
                "Retry-After": "Sat, 21 Nov 2026 13:00:30 GMT",
                "Date": "Sat, 21 Nov 2026 13:00:00 GMT",
            },
            30.0,
        ),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("driver", list(DRIVERS))
def test_retry_after_reaches_our_errors(
    driver: str, headers: dict[str, str], seconds: float | None
) -> None:
    """Seconds, or a date relative to the answer's own; nonsense is none."""
    lost = pytest.raises((UnavailableError, OutcomeUnknownError))
    with refused(driver, headers) as (_, storage), lost as caught:
        storage.read("a")
    assert caught.value.retry_after_seconds == seconds


def test_headers_of_other_clients() -> None:
    """aiohttp's and requests' exceptions carry headers in their own ways; odd ones are none."""

    class Aiohttp(Exception):
        headers = {"Retry-After": "3"}  # noqa: RUF012

    class Requests(Exception):
        class response:
            headers = {"RETRY-AFTER": " 4 "}  # noqa: RUF012

    class Odd(Exception):
        headers = 5

    wrapped = OSError("translated")
    wrapped.__cause__ = Aiohttp()
    assert [retry_after(e) for e in (Aiohttp(), Requests(), Odd(), wrapped)] == [3, 4, None, 3]


class Broken:
    """A server whose answers break off: in the body, before it, or in the very first line.

    `reset`: the connection is reset after the request was read.
    """

    def __init__(self, how: str) -> None:
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def break_off(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append(self.command)
                if how == "garbled":
                    self.wfile.write(b"\x00\x01 nonsense\r\n\r\n")
                elif how == "body":
                    self.send_response(206 if "Range" in str(self.headers) else 200)
                    self.send_header("Content-Length", "1000")
                    self.send_header("Content-Range", "bytes 0-999/1000")
                    self.send_header("ETag", '"x"')
                    self.end_headers()
                    self.wfile.write(b"x" * 100)
                self.wfile.flush()
                self.close_connection = True
                if how == "reset":
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.rfile.close()
                    self.connection.close()
                    return
                self.connection.shutdown(2)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = break_off

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Broken":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["body", "closed", "reset", "garbled"])
@pytest.mark.parametrize("driver", list(DRIVERS))
def test_an_answer_that_breaks_off_is_a_lost_reply(driver: str, how: str) -> None:
    """The commonest fault of object stores: reads are tried again, of writes nobody knows."""
    with Broken(how) as server:
        bare = DRIVERS[driver](server.url)
        for verb in ("read", "read_range"):
            with pytest.raises(UnavailableError, match="the reply was lost"):
                CALLS[verb](bare)
        with pytest.raises(OutcomeUnknownError):
            CALLS["put_if_absent"](bare)
        server.requests.clear()
        clock = ManualClock(0.0, [])
        patient = RetryingStorage(bare, StorageRetries(Backoff.fixed(3, 1.0)), clock=clock)
        with pytest.raises(UnavailableError, match="tries=4"):
            patient.read("a")
        assert len(server.requests) >= 4
