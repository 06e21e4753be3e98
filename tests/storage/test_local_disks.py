"""Local files on disks that are full, limited, broken or not ours."""

import errno
import io
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from local_files import fail_with, files_below
from sealed_stage import sealed_stage
from small_stage import SMALL, SeededIds, patient, read_rows

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.log.stage import require_seal
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.repair.stage import repair_stage
from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.verify.stage import check_stage


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
from durable_shuffle.shuffle.storage.local import LocalStorage
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
from durable_shuffle.shuffle.storage.local import LocalStorage
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


BAD = [errno.EIO, errno.EUCLEAN, errno.EBADMSG]


def bad_sectors(monkeypatch: pytest.MonkeyPatch, path: Path, number: int, times: int) -> list[str]:
    """Have the next reads of one file fail as the kernel says it of a bad sector; returns what was
    asked for."""
    asked: list[str] = []

    def failing(real: Any) -> Any:
        def opened(file: Any, *arguments: Any, **more: Any) -> Any:
            writes = arguments and isinstance(arguments[0], int) and arguments[0] & os.O_CREAT
            if not isinstance(file, int) and Path(file) == path and not writes:
                asked.append(str(file))
                if len(asked) <= times:
                    raise OSError(number, os.strerror(number), str(file))
            return real(file, *arguments, **more)

        return opened

    monkeypatch.setattr(os, "open", failing(os.open))
    monkeypatch.setattr(io, "open", failing(io.open))
    return asked


@pytest.mark.parametrize("number", BAD)
@pytest.mark.parametrize("how", ["read", "range", "ranges"])
def test_a_bad_sector_is_damage(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, how: str
) -> None:
    """After several tries it is corruption that names the object and says what helps; other
    objects are read."""
    storage = LocalStorage(root)
    storage.put("a", [b"x" * 100])
    storage.put("b", [b"y" * 100])
    asked = bad_sectors(monkeypatch, root / "a", number, 99)
    calls = {
        "read": lambda: patient(storage).read("a"),
        "range": lambda: patient(storage).read_range("a", 0, 10),
        "ranges": lambda: patient(storage).read_ranges(
            [ByteRange("b", 0, 10), ByteRange("a", 0, 10)]
        ),
    }
    with pytest.raises(CorruptDataError, match=r"cannot read a: .*verify --repair"):
        calls[how]()
    assert len(asked) >= 4
    assert patient(storage).read("b") == b"y" * 100


def test_a_short_outage_of_a_network_file_system_is_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO for a few tries, then the data: no error. Without the layer that tries again it is an
    error that says that trying again can help."""
    storage = LocalStorage(root)
    storage.put("a", [b"x" * 100])
    asked = bad_sectors(monkeypatch, root / "a", errno.EIO, 4)
    with pytest.raises(UnavailableError, match="reports an error"):
        storage.read("a")
    assert patient(storage).read("a") == b"x" * 100
    assert len(asked) == 5


@pytest.mark.parametrize("compacted", [False, True])
def test_a_segment_on_a_bad_sector_is_repaired(
    root: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    """verify finds it, readers get an error that names it, repair rebuilds it from another copy or
    names the producer that must run again; nobody needs to release the stage."""
    storage, ids = patient(LocalStorage(root)), SeededIds(random.Random(1))
    made = sealed_stage(storage, ids, producers=3, partitions=2)
    stage = made.stage
    if compacted:
        assert compact_stage(stage, ids=ids, generation=1, settings=SMALL).won
    bad = min(
        info.key for info in storage.list(stage.path.segments_prefix) if "/p000001-" in info.key
    )
    asked = bad_sectors(monkeypatch, root / bad, errno.EIO, 10**6)
    findings = check_stage(storage, stage.path, SMALL, released=False).findings
    assert [(finding.key, finding.kind.value) for finding in findings] == [(bad, "corrupt_data")]
    if not compacted:
        with pytest.raises(CorruptDataError, match=bad):
            [read_rows(stage, require_seal(stage), k) for k in range(2)]
    done = repair_stage(storage, stage.path, SMALL, ids=ids, generation=1)
    assert asked
    if not compacted:
        assert (done.outcome, done.run_again) == ("run again", (1,))
        return
    assert (done.outcome, done.rebuilt) == ("repaired", (1,))
    rows = [[row["n"] for row in read_rows(stage, require_seal(stage), k)] for k in range(2)]
    assert rows == [made.of(0), made.of(1)]
