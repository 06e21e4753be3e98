"""Local files on disks that are full, limited, broken or not ours."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from local_files import fail_with, files_below

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.local_storage import LocalStorage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "deep" / "root"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_system_without_hard_links_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No hard links, no exclusive create: refused by name, and nothing is left behind."""
    monkeypatch.setattr(os, "link", fail_with(number))
    with pytest.raises(InvalidInputError, match=r"root has no exclusive create.*hard links"):
        LocalStorage(root).put("a", [b"x"])
    assert files_below(root) == []


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, UnavailableError), (errno.EDQUOT, UnavailableError)],
)
def test_disk_that_is_full_gives_the_space_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    """A write that meets a full disk says what to do and removes what it had written."""
    storage = LocalStorage(root)
    monkeypatch.setattr(os, "fsync", fail_with(number))
    storage._synced_folders.add(root)
    root.mkdir(parents=True)
    with pytest.raises(expected, match=r"no space left.*free space and run again"):
        storage.put("a", [b"x"])
    assert files_below(root) == []


_FULL_DISK = """
import os, sys
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.local_storage import LocalStorage
storage = LocalStorage(sys.argv[1])
storage.put("small", [b"s" * 1000])
try:
    storage.put("large", [b"l" * 400_000] * 10)
except UnavailableError as error:
    assert "large" in str(error) and "free space" in str(error), error
else:
    sys.exit("the disk was not full")
names = sorted(os.listdir(sys.argv[1]))
assert names == ["small"], names
storage.put("fits-again", [b"l" * 400_000])
assert storage.read("small") == b"s" * 1000
print("survived")
"""


def test_real_full_disk(tmp_path: Path) -> None:
    """On a file system of 1 MB a large write fails, leaves nothing, and a smaller one then fits."""
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        allowed = subprocess.run(
            ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)],
            check=False,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("needs unshare, to mount a small file system")
    if allowed.returncode:
        pytest.skip("needs the right to mount a small file system")
    run = subprocess.run(
        [*command, _FULL_DISK], check=False, capture_output=True, text=True, env=environment
    )
    assert run.stdout == "survived\n", run.stderr


def test_file_size_limit_is_refused_and_gives_the_space_back(root: Path) -> None:
    """A limit on file sizes is not a full disk: trying again is useless, and the error says so."""
    storage = LocalStorage(root)
    storage.put("small", [b"x"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(InvalidInputError, match="large"):
            storage.put("large", [b"x" * 1_000_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_below(root) == ["small"]


def test_unknown_disk_error_is_an_unknown_outcome(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an I/O error of a write nobody may claim to know whether it landed."""
    storage = LocalStorage(root)
    storage.put("a/first", [b"x"])
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO))
    with pytest.raises(OutcomeUnknownError, match="a/second"):
        storage.put("a/second", [b"x"])


_NO_RIGHTS = """
import os, sys
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.local_storage import LocalStorage
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
storage = LocalStorage(sys.argv[1])
calls = {
    "create locked/new": lambda: storage.put("locked/new", [b"x"]),
    "read open/unreadable": lambda: storage.read("open/unreadable"),
    "read  open/unreadable": lambda: storage.read_range("open/unreadable", 0, 1),
    "delete open/unreadable": lambda: storage.delete(["open/unreadable"]),
}
for name, call in calls.items():
    try:
        call()
    except InvalidInputError as error:
        assert sys.argv[1] in str(error) and name.split()[1] in str(error), error
        assert "Permission denied" in str(error), error
    else:
        sys.exit(f"{name} was allowed")
print("refused")
"""


def test_missing_permission_names_the_path(tmp_path: Path) -> None:
    """Without rights every call is the caller's mistake and names root and key."""
    (tmp_path / "locked").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "unreadable").write_bytes(b"x")
    (tmp_path / "open" / "unreadable").chmod(0)
    (tmp_path / "open").chmod(0o555)
    (tmp_path / "locked").chmod(0o555)
    opened = [folder for folder in tmp_path.parents if not folder.stat().st_mode & 0o001]
    before = [folder.stat().st_mode for folder in (tmp_path, *opened)]
    for folder in (tmp_path, *opened):
        folder.chmod(0o755)
    try:
        run = subprocess.run(
            [sys.executable, "-c", _NO_RIGHTS, str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    finally:
        (tmp_path / "open").chmod(0o755)
        (tmp_path / "locked").chmod(0o755)
        for folder, mode in zip((tmp_path, *opened), before, strict=True):
            folder.chmod(mode)
    assert run.stdout == "refused\n", run.stderr
