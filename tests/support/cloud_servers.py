"""Servers that speak the protocols of Azure, Google's storage and S3, on this machine, for tests.

Each is installed once, into `.venv/servers`, from the registry that has it: Azurite from npm,
fake-gcs-server and MinIO from Go's modules (MinIO takes minutes), moto from PyPI. They listen on
loopback only and end with the test.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / ".venv" / "servers"
AZURITE, FAKE_GCS, MOTO = "3.35.0", "v1.56.1", "5.1.0"
MINIO = "v0.0.0-20260212201848-7aac2a2c5b7c"
_AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's own, the same on every machine: it protects nothing."""
START_SECONDS = 60.0

Place = tuple[str, dict[str, object]]
"""URL of a bucket, and the storage options by which it is reached."""


def by_environment(url: str, options: dict[str, object]) -> dict[str, str]:
    """Return the environment variables by which a driver finds the server, in place of options."""
    if url.startswith("az:"):
        return {"AZURE_STORAGE_CONNECTION_STRING": str(options["connection_string"])}
    if url.startswith("gs:"):
        return {"STORAGE_EMULATOR_HOST": str(options["endpoint_url"])}
    return {
        "AWS_ACCESS_KEY_ID": str(options["key"]),
        "AWS_SECRET_ACCESS_KEY": str(options["secret"]),
        "AWS_ENDPOINT_URL": str(options["endpoint_url"]),
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


class CannotInstallError(Exception):
    """The server cannot be had on this machine; the message says why."""


@contextmanager
def azurite(folder: Path) -> Iterator[Place]:
    """Run Azurite with its data in `folder`."""
    program = SERVERS / "node_modules" / ".bin" / "azurite-blob"
    _install(program, "npm", ["install", "--prefix", str(SERVERS), f"azurite@{AZURITE}"])
    port = _free_port()
    quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--loose"]
    where = ["--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
    connection = (
        "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
        f"AccountKey={_AZURE_KEY};BlobEndpoint={endpoint};"
    )
    with _running([str(program), *where, *quiet], f"http://127.0.0.1:{port}/"):
        from azure.storage.blob import BlobServiceClient

        BlobServiceClient.from_connection_string(connection).create_container("stored")
        yield "az://stored/root", {"connection_string": connection}


@contextmanager
def fake_gcs(folder: Path) -> Iterator[Place]:
    """Run fake-gcs-server with its data in `folder`."""
    program = SERVERS / "bin" / "fake-gcs-server"
    module = f"github.com/fsouza/fake-gcs-server@{FAKE_GCS}"
    _install(program, "go", ["install", module], {"GOBIN": str(program.parent)})
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    (folder / "stored").mkdir(parents=True)
    listen = ["-host", "127.0.0.1", "-port", str(port), "-scheme", "http"]
    where = ["-filesystem-root", str(folder), "-external-url", endpoint]
    with _running([str(program), *listen, *where], f"{endpoint}/storage/v1/b?project=p"):
        options: dict[str, object] = {"endpoint_url": endpoint, "token": "anon", "project": "p"}
        yield "gs://stored/root", options


@contextmanager
def moto(folder: Path) -> Iterator[Place]:
    """Run moto's S3 server, which keeps its data in memory."""
    packages = SERVERS / "moto"
    pip = ["-m", "pip", "install", "-q", "--target", str(packages), f"moto[server,s3]=={MOTO}"]
    _install(packages / "moto", sys.executable, pip)
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, f"{endpoint}/moto-api/", {"PYTHONPATH": str(packages)}):
        request = urllib.request.Request(f"{endpoint}/stored", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield "s3://stored/root", _s3_options("test", endpoint)


@contextmanager
def minio(folder: Path) -> Iterator[Place]:
    """Run MinIO with its data in `folder`."""
    program, secret = SERVERS / "bin" / "minio", "minio-of-tests"
    module = f"github.com/minio/minio@{MINIO}"
    _install(program, "go", ["install", module], {"GOBIN": str(program.parent)})
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(program), "server", str(folder), "--address", f"127.0.0.1:{port}"]
    account = {"MINIO_ROOT_USER": secret, "MINIO_ROOT_PASSWORD": secret, "MINIO_BROWSER": "off"}
    with _running(command, f"{endpoint}/minio/health/live", account):
        from s3fs import S3FileSystem

        options = _s3_options(secret, endpoint)
        S3FileSystem(**options).mkdir("stored")
        yield "s3://stored/root", options


def _s3_options(account: str, endpoint: str) -> dict[str, object]:
    """Return storage options for an account whose secret is its name."""
    region = {"region_name": "us-east-1"}
    return {"key": account, "secret": account, "endpoint_url": endpoint, "client_kwargs": region}


EVERY: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "azurite": azurite,
    "fake-gcs-server": fake_gcs,
    "moto": moto,
    "minio": minio,
}


def _install(
    made: Path, program: str, arguments: Sequence[str], more: dict[str, str] | None = None
) -> None:
    if made.exists():
        return
    if shutil.which(program) is None:
        raise CannotInstallError(f"{program} is not on this machine")
    SERVERS.mkdir(parents=True, exist_ok=True)
    command = [program, *arguments]
    environment = {**os.environ, **(more or {})}
    done = subprocess.run(
        command, env=environment, cwd=SERVERS, capture_output=True, text=True, check=False
    )
    if done.returncode or not made.exists():
        raise CannotInstallError(f"{' '.join(command)} failed: {done.stderr[-500:]}")


@contextmanager
def _running(
    command: Sequence[str], answers: str, more: dict[str, str] | None = None
) -> Iterator[None]:
    """Run a server from when it answers, with any status, until the block ends."""
    environment = {**os.environ, **(more or {})}
    log = subprocess.DEVNULL
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_SECONDS
        while not _answers(answers):
            if server.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"{command[0]} does not answer at {answers}")
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
