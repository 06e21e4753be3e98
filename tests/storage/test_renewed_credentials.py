"""Credentials of a role are renewed before they expire, in a process that lives on.

A service hands out credentials that last a second, and answers requests for objects that are
signed with one of them that has not expired.
"""

import json
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.storage.contract import Storage, backend_of
from durable_shuffle.shuffle.storage.obstore_backend import ObstoreStorage
from durable_shuffle.shuffle.storage.open import open_storage

LASTS_SECONDS = 1.0
_STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{AccessKeyId}</AccessKeyId>
<SecretAccessKey>{SecretAccessKey}</SecretAccessKey><SessionToken>{Token}</SessionToken>
<Expiration>{Expiration}</Expiration></Credentials><SubjectFromWebIdentityToken>s
</SubjectFromWebIdentityToken></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


class Cloud:
    """Hands out credentials by every way that is known, and holds one object."""

    def __init__(self, trusted: Path | None = None) -> None:
        self.issued: list[float] = []
        """When each credential was handed out, by a monotonic clock."""
        self.renews = True
        self.refused = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        name = "http"
        if trusted is not None:  # over TLS; clients need the certificate that is written there
            name, authority = "https", trustme.CA()
            authority.cert_pem.write_to_path(str(trusted))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("127.0.0.1").configure_cert(context)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{name}://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator["Cloud"]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        yield self
        self._server.shutdown()
        self._server.server_close()

    def credentials(self) -> dict[str, str]:
        if self.renews or not self.issued:
            self.issued.append(time.monotonic())
        left = self.issued[-1] + LASTS_SECONDS - time.monotonic()
        ends = datetime.now(UTC) + timedelta(seconds=left)
        number = len(self.issued) - 1
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "LastUpdated": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "AccessKeyId": f"KEY{number}",
            "SecretAccessKey": "role-secret",
            "Token": f"token-{number}",
            "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }

    def is_valid(self, token: str | None) -> bool:
        number = re.fullmatch(r"token-(\d+)", token or "")
        return bool(number) and time.monotonic() < self.issued[int(number[1])] + LASTS_SECONDS


def _handler_of(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/role":
                allowed = self.headers.get("Authorization") in ("pod-token", None)
                self._answer(200 if allowed else 403, json.dumps(cloud.credentials()))
            elif self.path.endswith("/security-credentials/"):
                self._answer(200, "test-role")
            elif self.path.endswith("/security-credentials/test-role"):
                self._answer(200, json.dumps(cloud.credentials()))
            elif cloud.is_valid(self.headers.get("x-amz-security-token")):
                self._answer(200, "abc")
            else:
                cloud.refused += 1
                error = "<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>"
                self._answer(400, error)

        def do_PUT(self) -> None:
            self._answer(200, "metadata-token")

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            assert "AssumeRoleWithWebIdentity" in asked + self.path
            self._answer(200, _STS.format(**cloud.credentials()))

        def _answer(self, status: int, text: str) -> None:
            self.send_response_only(status)
            for name, value in (
                ("Content-Length", str(len(text))),
                ("ETag", '"e"'),
                ("Last-Modified", "Sun, 29 Nov 2026 00:00:00 GMT"),
                ("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

    return Handler


def found_by(way: str, cloud: Cloud, folder: Path) -> Mapping[str, str]:
    """Return the variables that a platform sets for this way; write the file that they name."""
    token = folder / "token"
    token.write_text("pod-token")
    if way == "pod identity":
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": cloud.url + "/role",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        }
    if way == "container":
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": cloud.url + "/role"}
    if way == "container, token":
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": cloud.url + "/role",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "pod-token",
        }
    if way.startswith("web identity"):
        return {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/test-role",
            "AWS_ROLE_SESSION_NAME": "test",
            "AWS_ENDPOINT_URL_STS": cloud.url,
        }
    assert way == "instance"
    return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": cloud.url + "/"}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No credentials but those of a test."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    return monkeypatch


def read_on(storage: Storage) -> None:
    while True:
        assert storage.read("a") == b"abc"


WAYS = (
    *("pod identity", "container", "container, token", "web identity", "web identity, TLS"),
    "instance",
)
BY_OBSTORE = ("pod identity", "web identity, TLS")
"""The others go by s3fs."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_credentials_of_a_role_are_renewed_before_they_expire(
    bare: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    """Requests go on behind the end of the first credentials, and none is refused."""
    trusted = tmp_path / "trusted.pem" if "TLS" in way else None
    with Cloud(trusted).running() as cloud:
        for name, value in found_by(way, cloud, tmp_path).items():
            bare.setenv(name, value)
        if trusted:
            bare.setenv("AWS_CA_BUNDLE", str(trusted))
        options = {"endpoint_url": cloud.url, "client_kwargs": {"region_name": "us-east-1"}}
        storage = open_storage(f"s3://bucket/{way[:3]}", options)
        assert isinstance(backend_of(storage), ObstoreStorage) == (way in BY_OBSTORE)
        reads, end = 0, float("inf")
        while time.monotonic() < end:
            assert storage.read("a") == b"abc"
            end = cloud.issued[0] + 1.5 * LASTS_SECONDS
            reads += 1
        assert len(cloud.issued) > 1
        assert reads > 1
        assert (cloud.refused, storage.counts.retries) == (0, 0)


@pytest.mark.parametrize("way", ["pod identity", "instance"])
def test_credentials_that_are_not_renewed_are_an_outage(
    bare: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    """The service hands out the same ones again. No secret is in the message."""
    with Cloud().running() as cloud:
        cloud.renews = False
        for name, value in found_by(way, cloud, tmp_path).items():
            bare.setenv(name, value)
        options = {"endpoint_url": cloud.url, "client_kwargs": {"region_name": "us-east-1"}}
        storage = open_storage(f"s3://bucket/{way[:3]}-ends", options, call_seconds=0.5)
        with pytest.raises(UnavailableError) as e:
            read_on(storage)
        assert cloud.refused or "expired" in str(e.value).lower()
        assert "role-secret" not in str(e.value)
