"""URLs lead to the right storage, or to an error that says what to do."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.open import check_path, open_storage

SECRET = "hunter2" * 2


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}", "local://{}"])
def test_paths_and_file_urls_open_a_folder(tmp_path: Path, form: str) -> None:
    """All spellings of a folder mean that folder."""
    storage = open_storage(form.format(tmp_path / "x"))
    assert isinstance(storage.backend, LocalStorage)
    assert storage.description == f"file:{tmp_path / 'x'}"


def test_relative_path_is_resolved_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with another working folder gets the same place."""
    monkeypatch.chdir(tmp_path)
    storage = open_storage("some/folder")
    monkeypatch.chdir("/")
    assert storage.description == f"file:{tmp_path}/some/folder"


@pytest.mark.parametrize("url", ["s3://bucket/folder", "s3a://bucket/folder/"])
def test_object_store_urls_open_without_a_request(url: str) -> None:
    """Opening only checks the driver; the description is the URL."""
    storage = open_storage(url, {"endpoint_url": "http://127.0.0.1:1"})
    assert isinstance(storage.backend, FsspecStorage)
    assert storage.description == url.rstrip("/")


@pytest.mark.parametrize(
    "protocol",
    [
        "memory",
        "ftp",
        "http",
        "https",
        "sftp",
        "github",
        "zip",
        "dbfs",
        "webdav",
        "nonsense",
    ],
)
def test_protocols_without_exclusive_create_are_refused_by_name(protocol: str) -> None:
    """No silent fallback: the error names the protocol, the reason and what is known."""
    with pytest.raises(
        InvalidInputError, match="no exclusive create that durable-shuffle knows"
    ) as e:
        open_storage(f"{protocol}://somewhere/folder")
    assert str(e.value).startswith(f"{protocol}: ")
    assert "usable are file, hdfs, viewfs, s3" in str(e.value)


def test_memory_says_why_and_what_instead() -> None:
    """Bytes of one process are nothing that Spark's workers could share."""
    with pytest.raises(InvalidInputError, match=r"every Spark worker.*MemoryStorage\(\)"):
        open_storage("memory://x")


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("s3://b/x", "s3fs", "s3"), ("gs://b/x", "gcsfs", "gcs"), ("az://b/x", "adlfs", "azure")],
)
def test_missing_driver_names_what_to_install(url: str, package: str, extra: str) -> None:
    """A driver that is not installed is one pip command away; other storages do not need it."""
    code = f"""
import sys
sys.modules[{package!r}] = None
from durable_shuffle.shuffle.storage.open import check_path, open_storage
open_storage("/tmp/not-made")
open_storage({url!r})
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    last = run.stderr.splitlines()[-1]
    assert last.startswith("durable_shuffle.serialization.errors.InvalidInputError: ")
    assert f"needs {package}; pip install 'durable-shuffle[{extra}]'" in last


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "a path or a URL"),
        ("file://", "names no folder"),
        ("file:", "names no folder"),
        ("file://otherhost/data", "host 'otherhost'"),
        ("simplecache::s3://b/x", "chained"),
        ("s3://", "names no bucket"),
    ],
)
def test_urls_that_name_no_place_are_refused(url: str, reason: str) -> None:
    """A URL that could mean several things, or nothing, is not guessed."""
    with pytest.raises(InvalidInputError, match=reason):
        open_storage(url)


@pytest.mark.parametrize(
    "url",
    [
        *(f"{p}://user:{{}}@place/x" for p in ("s3", "s3a", "gs", "az", "abfs", "file", "local")),
        *(f"{p}://u:{{}}@h/x" for p in ("ftp", "https", "hdfs", "sftp", "nonsense", "sqlite")),
        "s3://{}@bucket/x",
        "s3://user:a/{}@bucket/x",
        "s3://user:a@{}@bucket/x",
        "file://user:{}/x",
        "abfs://u:{}@c@account/x",
        "s3://bucket/x?X-Amz-Signature={}",
        "s3://bucket/x?anything={}",
        "s3://bucket/x#{}",
        "abfs://c@a.dfs.core.windows.net/x?sig={}",
        "s3:/user:{}@bucket/x",
    ],
)
def test_no_secret_of_a_url_is_in_the_error(url: str) -> None:
    """A user, a password and a query are refused; nothing of them is shown."""
    with pytest.raises(InvalidInputError) as e:
        open_storage(url.format(SECRET))
    assert SECRET not in "".join(traceback.format_exception(e.value))
    assert url.partition(":")[0] in str(e.value)


def test_a_container_before_the_account_is_no_user() -> None:
    """Azure's own form of a URL."""
    url = "abfs://container@account.dfs.core.windows.net/x"
    assert open_storage(url, {"account_key": "MDA="}).description.startswith("abfs://")


@pytest.mark.parametrize(
    "url", ["s3:/bucket/x", "gs:bucket", "S3:/x", "hdfs:/x", "http:/host/x", "az:/"]
)
def test_a_url_with_one_slash_is_no_folder(url: str) -> None:
    """It would be written to the local disk, below a folder of that name."""
    for action in (open_storage, check_path):
        with pytest.raises(InvalidInputError, match=r"did you mean .*://"):
            action(url)


@pytest.mark.parametrize("path", ["C:/data", "a:b", "./s3:/x", "/data/s3:/x", "time 12:30"])
def test_paths_with_a_colon_are_paths(path: str) -> None:
    """A drive, an absolute path, and what begins with a dot."""
    assert isinstance(open_storage(path).backend, LocalStorage)


def test_options_for_a_folder_are_refused(tmp_path: Path) -> None:
    """Options that nothing would read are a mistake; their values are not shown."""
    with pytest.raises(InvalidInputError, match="'secret'") as e:
        open_storage(str(tmp_path), {"secret": "hunter2hunter2"})
    assert "hunter2" not in str(e.value)


def test_driver_that_would_ignore_the_condition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old drivers take `mode` among their other arguments and drop it: refused before any write."""

    class OldDriver:
        async def _pipe_file(self, path: str, data: bytes, **kwargs: object) -> None: ...

        def pipe_file(self, path: str, data: bytes, **kwargs: object) -> None: ...

    monkeypatch.setattr("s3fs.S3FileSystem", OldDriver)
    with pytest.raises(InvalidInputError, match=r"s3fs is too old.*--upgrade"):
        open_storage("s3://b/x")


@pytest.mark.parametrize("protocol", ["s3", "gs", "az"])
def test_a_class_that_others_registered_is_not_used(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `pipe_file` may take the condition and ignore it. gcsfs's own class does so in zonal
    buckets, and opens connections that do not survive a fork."""

    class Foreign(MemoryFileSystem):  # type: ignore[misc]
        def pipe_file(self, path: str, value: bytes, mode: str = "create", **_: object) -> None:
            raise AssertionError("a foreign class was used")

    registry = sys.modules["fsspec.registry"]
    monkeypatch.setitem(registry._registry, protocol, Foreign)
    options = {"az": {"account_name": "a", "anon": True}, "gs": {"token": "anon"}}
    storage = FsspecStorage(f"{protocol}://bucket/x", options.get(protocol, {"anon": True}))
    filesystem, root = storage._connect()
    assert root == "bucket/x"
    module = type(filesystem).__module__
    assert module in ("s3fs.core", "gcsfs.core", "adlfs.spec"), module


def test_a_url_of_another_type_is_named(tmp_path: Path) -> None:
    """A typed error, not Python's."""
    with pytest.raises(InvalidInputError, match="found=PosixPath"):
        open_storage(tmp_path)  # type: ignore[arg-type]
