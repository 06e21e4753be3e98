"""A proxy between a driver library and its object store, whose answers break as networks break.

Strategy: HTTP/1.1 on loopback, one thread per connection, each request forwarded whole with its own
Host header, so that signatures hold. A fault is drawn from a seed for each request. Injection
above the driver (`faulty_storage`) never shows what the driver makes of a broken answer.
"""

import http.client
import random
import socket
import struct
import sys
import threading
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

ProxyFault = Literal["cut", "drop", "lost", "reset", "stall", "busy", "error", "stray"]
"""cut: half of the body, then the connection ends. drop: the request is not forwarded, and there is
no answer. lost: it took effect, and there is no answer. reset: as lost, by a reset connection.
stall: as lost, after `stall_seconds`. busy: 503 SlowDown, not forwarded. error: 500, and it took
effect. stray: 403 without a reason, not forwarded."""

FAULTS: tuple[ProxyFault, ...] = (
    *("cut", "drop", "lost", "reset", "stall", "busy", "error", "stray"),
)

_BODIES = {
    "busy": (503, b"<Error><Code>SlowDown</Code><Message>busy</Message></Error>"),
    "error": (500, b"<Error><Code>InternalError</Code><Message>oops</Message></Error>"),
    "stray": (403, b""),
    "unknown": (501, b"<Error><Code>NotImplemented</Code><Message>no such</Message></Error>"),
    "digest": (400, b"<Error><Code>MissingContentMD5</Code><Message>no</Message></Error>"),
    "unchanged": (304, b""),
    "expired": (400, b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>"),
}
_HOP_BY_HOP = {"connection", "expect", "keep-alive", "transfer-encoding"}


class _Server(ThreadingHTTPServer):
    """Says nothing of clients that hang up or die."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FaultProxy:
    """Forwards to `target`, an `http://host:port`, which may be changed at any time.

    While `target` is "" no request is forwarded: connections end without an answer.
    """

    def __init__(
        self,
        target: str,
        *,
        seed: int,
        chance: float,
        faults: tuple[ProxyFault, ...] = FAULTS,
        stall_seconds: float = 3.0,
    ) -> None:
        self.target, self.fired = target, Counter[str]()
        self.requests = 0
        self.no_bulk_deletes: Literal["", "unknown", "digest"] = ""
        """What the service answers to the request that deletes many objects: it knows none, or
        wants it with a digest."""
        self.ranges = True
        """False: every answer holds the whole object, as of a service that ignores `Range`. Only
        for objects that were put since."""
        self.bodies: dict[str, bytes] = {}
        self.not_modified = 0
        """So many reads are answered with 304 and nothing more, as a stale cache does."""
        self.expired = ""
        """Access key whose requests are refused, because it has expired."""
        self._random, self._chance, self._faults = random.Random(seed), chance, faults
        self._ended, self._stall = threading.Event(), stall_seconds
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FaultProxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def unfired(self) -> set[ProxyFault]:
        """Faults that were never injected. A test proves nothing about these."""
        return set(self._faults) - set(self.fired)

    def draw(self) -> str:
        """Return the fault for the next request, "" for none."""
        with self._lock:
            self.requests += 1
            if not self.target:
                return "drop"
            if self._random.random() >= self._chance:
                return ""
            return self._random.choice(self._faults)

    def note(self, fault: str) -> None:
        with self._lock:
            self.fired[fault] += 1

    def stall(self) -> None:
        """Hold the answer back, at most until the proxy ends."""
        self._ended.wait(self._stall)


def _handler_of(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.draw()
            signed = self.headers.get("Authorization", "")
            if proxy.expired and f"Credential={proxy.expired}/" in signed:
                fault = "expired"
            if not proxy.ranges and self.headers.get("Range") and self.path in proxy.bodies:
                proxy.note("range")
                self._answer(200, proxy.bodies[self.path], {})
                return
            if not proxy.ranges and self.command == "PUT":
                proxy.bodies[self.path] = body
            if proxy.not_modified and self.command == "GET" and "list-type" not in self.path:
                proxy.not_modified -= 1
                fault = "unchanged"
            if proxy.no_bulk_deletes and self.command == "POST" and "?delete" in self.path:
                fault = proxy.no_bulk_deletes
            if fault in ("busy", "stray", "expired", "unknown", "digest", "unchanged"):
                proxy.note(fault)
                self._answer(*_BODIES[fault], {})
                return
            if fault == "drop":
                proxy.note(fault)
                self._hang_up()
                return
            try:
                status, headers, answer = self._ask(body)
            except OSError:  # the server is away
                self._hang_up()
                return
            if fault == "cut" and (self.command == "HEAD" or len(answer) < 2):
                fault = ""  # no body to cut
            if fault:
                proxy.note(fault)
            if fault == "stall":
                proxy.stall()
            if fault in ("lost", "reset", "stall"):
                self._hang_up(reset=fault == "reset")
            elif fault == "error":
                self._answer(*_BODIES[fault], {})
            else:
                self._answer(status, answer, headers, cut=fault == "cut")

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

        def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            place = urlsplit(proxy.target)
            upstream = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
            try:
                upstream.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():
                    if name.lower() not in _HOP_BY_HOP:
                        upstream.putheader(name, value)
                upstream.endheaders(body)
                reply = upstream.getresponse()
                headers = {n: v for n, v in reply.getheaders() if n.lower() not in _HOP_BY_HOP}
                return reply.status, headers, reply.read()
            except http.client.HTTPException as error:
                raise ConnectionError(str(error)) from error
            finally:
                upstream.close()

        def _answer(
            self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False
        ) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() != "content-length":
                    self.send_header(name, value)
            length = len(body)
            if self.command == "HEAD":
                length = int({k.lower(): v for k, v in headers.items()}.get("content-length", 0))
                body = b""
            if status != 204:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body[: length // 2] if cut else body)
            self.wfile.flush()
            if cut:
                self._hang_up()

        def _hang_up(self, *, reset: bool = False) -> None:
            self.close_connection = True
            with suppress(OSError):
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.rfile.close()
                    self.connection.close()
                else:
                    self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
