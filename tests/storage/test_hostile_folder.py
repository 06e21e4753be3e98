"""A local root that somebody else can write to: links, special files, objects of any length."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stored_job import stored_stage

from durable_shuffle.serialization.control import bound, decode_control, encode_control
from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import ConsumerPath
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.repair.job_log import repair_job_log
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.verify.job import verify_job

CALLS: dict[str, Callable[[Storage, str], Any]] = {
    "read": lambda s, key: s.read(key),
    "read_range": lambda s, key: s.read_range(key, 0, 1),
    "put_if_absent": lambda s, key: s.put_if_absent(key, b"mine"),
}


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "letter")


def zero(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def loop(path: Path, outside: Path) -> None:
    path.symlink_to(path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


def full_folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "x").touch()


STRANGE = (link, zero, fifo, unix_socket, loop, folder)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the root with three files that are nobody's business."""
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    for name in ("letter", "photo", "sub/key"):
        (folder / name).write_text("dear")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """End what hangs."""

    def late(*_: object) -> None:
        raise AssertionError(f"hung for {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("make", STRANGE, ids=lambda f: f.__name__)
def test_what_is_no_regular_file_is_damage(
    root: Path, outside: Path, make: Callable[[Path, Path], None], verb: str
) -> None:
    """At once, by name, and without a byte of what it leads to."""
    (root / "a").mkdir()
    make(root / "a" / "b", outside)
    with within(10), pytest.raises(CorruptDataError, match="a/b is a link, a folder or a") as e:
        CALLS[verb](LocalStorage(root), "a/b")
    assert "dear" not in str(e.value)


@pytest.mark.parametrize("make", STRANGE, ids=lambda f: f.__name__)
def test_a_slot_that_is_no_regular_file_is_listed_refused_and_mended(
    root: Path, outside: Path, make: Callable[[Path, Path], None]
) -> None:
    """The next slot of a job log: no driver waits for it, `verify` names it, repair removes it."""
    JobLog.claim(open_storage(str(root), {}), "job", "a" * 32)
    make(root / "job/log/0000000001", outside)
    storage = open_storage(str(root), {})
    assert "job/log/0000000001" in [info.key for info in storage.list("job/")]
    with within(10), pytest.raises(CorruptDataError, match="job/log/0000000001"):
        JobLog.claim(storage, "job", "b" * 32)
    with within(10), pytest.raises(CorruptDataError, match="job/log/0000000001"):
        SlotLog(storage, "job/log/").append(1, b"record")
    findings = verify_job(storage, "job", Settings()).findings
    assert [f.key for f in findings] == ["job/log/0000000001"]
    repair_job_log(storage, "job", RandomIds())
    assert verify_job(storage, "job", Settings()).findings == ()
    assert len(list(outside.rglob("*"))) == 4


def test_a_repair_never_deletes_what_a_folder_holds(root: Path, outside: Path) -> None:
    """A folder with files has the name of a slot: the error says to remove it, the files stay."""
    for claim in ("a" * 32, "b" * 32, "c" * 32):
        JobLog.claim(LocalStorage(root), "job", claim)
    (root / "job/log/0000000001").unlink()
    full_folder(root / "job/log/0000000001", outside)
    with pytest.raises(CorruptDataError, match="job/log/0000000001 is a link, a folder or"):
        repair_job_log(LocalStorage(root), "job", RandomIds())
    assert (root / "job/log/0000000001/x").exists()


@pytest.mark.parametrize("log", ["commands", "requests", "status"])
@pytest.mark.parametrize("make", [*STRANGE, full_folder], ids=lambda f: f.__name__)
def test_an_only_slot_that_is_no_regular_file_is_found(
    root: Path, outside: Path, make: Callable[[Path, Path], None], log: str
) -> None:
    """Logs of which nothing else tells."""
    storage = LocalStorage(root)
    JobLog.claim(storage, "job", "a" * 32)
    (root / "job" / log).mkdir()
    make(root / "job" / log / "0000000000", outside)
    findings = verify_job(storage, "job", Settings()).findings
    assert [f.key for f in findings] == [f"job/{log}/0000000000"]


def test_the_only_slot_of_a_consumer_is_a_folder(root: Path) -> None:
    """An empty folder, and nothing else of the consumer."""
    storage = LocalStorage(root)
    JobLog.claim(storage, "job", "a" * 32)
    path = ConsumerPath("job", "reader", "task")
    (root / path.log_prefix / "0000000000").mkdir(parents=True)
    (verdict,) = verify_job(storage, "job", Settings()).consumers
    assert [f.key for f in verdict.findings] == [f"{path.log_prefix}0000000000"]


def test_empty_folders_of_ours_are_not_listed(root: Path) -> None:
    """They are left when what stood in them was deleted."""
    storage = LocalStorage(root)
    storage.put("job/stage/a", [b"x"])
    storage.delete(["job/stage/a"])
    assert list(storage.list("")) == []


@pytest.mark.parametrize("at", ["a", "a/b"])
def test_nothing_is_done_through_a_link_in_a_folder_above(
    root: Path, outside: Path, at: str
) -> None:
    """Every call, also with a folder that was real when it was first used."""
    storage = LocalStorage(root)
    storage.put("a/b/letter", [b"mine"])
    (root / "a").rename(root / "kept")
    (root / at).parent.mkdir(parents=True, exist_ok=True)
    target = outside if at == "a/b" else outside.parent / "up"
    if at == "a":
        target.mkdir()
        (target / "b").symlink_to(outside)
    (root / at).symlink_to(target)
    calls: dict[str, Callable[[Storage], Any]] = {
        "read": lambda s: s.read("a/b/letter"),
        "read_range": lambda s: s.read_range("a/b/letter", 0, 1),
        "list": lambda s: list(s.list("a/b/")),
        "delete": lambda s: s.delete(["a/b/letter"]),
        "temporary_files": lambda s: list(s.temporary_files("a/b/")),
        "put": lambda s: s.put("a/b/new", [b"x"]),
    }
    for name, call in calls.items():
        for used in (LocalStorage(root),) if name == "put" else (storage, LocalStorage(root)):
            with pytest.raises(CorruptDataError, match="is a link"):
                call(used)
    assert sorted(p.name for p in outside.rglob("*")) == ["key", "letter", "photo", "sub"]


def test_a_file_is_looked_for_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file at its place needs no second look; another file under its name does."""
    storage, asked, readlink = LocalStorage(root), [], os.readlink

    def counting(path: Any, **options: Any) -> str:
        asked.append(path)
        return readlink(path, **options)

    storage.put("a/b/c", [b"0123456789"])
    monkeypatch.setattr(os, "readlink", counting)
    for start in range(10):
        assert storage.read_range("a/b/c", start, 1) == b"%d" % start
    assert len(asked) == 1
    (root / "a/b/new").write_bytes(b"x" * 10)
    (root / "a/b/new").rename(root / "a/b/c")
    assert storage.read_range("a/b/c", 0, 1) == b"x"
    assert len(asked) == 2


@pytest.mark.parametrize("keep", ["a", "a/b"])
def test_a_folder_that_becomes_a_link_after_reads(root: Path, outside: Path, keep: str) -> None:
    """Having been read before does not make way for another file of the same name."""
    storage = LocalStorage(root)
    storage.put("a/b/c", [b"mine"])
    for _ in range(3):
        assert storage.read("a/b/c") == b"mine"
    (root / keep).rename(root / "away")
    (outside / "b").mkdir()
    (outside / "b/c").write_text("dear")
    (root / keep).symlink_to(outside if keep == "a" else outside / "b")
    for call in (CALLS["read"], CALLS["read_range"]):
        with pytest.raises(CorruptDataError, match="is a link"):
            call(storage, "a/b/c")


def test_the_root_itself_may_be_reached_by_a_link(root: Path, tmp_path: Path) -> None:
    """Users mount and link folders as they like: what counts begins at the root."""
    (tmp_path / "alias").symlink_to(root)
    LocalStorage(tmp_path / "alias").put("a/b", [b"x"])
    assert LocalStorage(root).read("a/b") == b"x"
    assert [info.key for info in LocalStorage(tmp_path / "alias").list("")] == ["a/b"]


def test_without_proc_links_are_found_one_by_one(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every system says where an open file stands."""

    def refuse(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", refuse)
    storage = LocalStorage(root)
    storage.put("a/b", [b"x"])
    assert storage.read("a/b") == b"x"
    (root / "c").symlink_to(outside)
    with pytest.raises(CorruptDataError, match="c is a link"):
        storage.read("c/letter")


@pytest.fixture
def stage(root: Path) -> StageHandle:
    storage = LocalStorage(root)
    log = JobLog.claim(storage, "job", "a" * 32)
    return stored_stage(log, storage, job="job", rows=(50, 20), partitions=2, used_partitions=2)


@pytest.mark.parametrize("place", ["segments", "index", "compacted"])
def test_release_deletes_nothing_outside_of_the_root(
    root: Path, outside: Path, stage: StageHandle, place: str
) -> None:
    """A folder of the stage is a link: refused by name, and whole again once it is removed."""
    folder = root / stage.path.prefix / place
    if folder.exists():
        folder.rename(root.parent / "moved")
    folder.symlink_to(outside)
    storage, ids = LocalStorage(root), RandomIds()
    log = JobLog.claim(storage, "job", ids.new_id())
    with pytest.raises(CorruptDataError, match=f"{place} is a link"):
        release_stage_of(log, storage, stage.path, ids)
    assert len([p for p in outside.rglob("*") if p.is_file()]) == 3
    folder.unlink()
    release_stage_of(log, storage, stage.path, ids)


def test_release_deletes_only_what_a_stage_gives_names_to(root: Path, stage: StageHandle) -> None:
    """Whatever else somebody put there stays."""
    prefix = root / stage.path.prefix
    segment = next(prefix.glob("segments/*/*.seg"))
    index = next(prefix.glob("index/*"))
    strange = [
        prefix / "segments" / "letter.txt",
        prefix / "segments" / segment.name,  # not in the folder that its name says
        segment.with_name(segment.name.replace("p000000", "p0000000")),
        prefix / "index" / "notes",
        prefix / "compacted" / "00" / f"{'1' * 32}-0.seg",
    ]
    for path in strange:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    storage, ids = LocalStorage(root), RandomIds()
    release_stage_of(JobLog.claim(storage, "job", ids.new_id()), storage, stage.path, ids)
    assert all(path.exists() for path in strange if path != segment)
    assert not segment.exists()
    assert not index.exists()


MEMORY = 700 << 20


def in_little_memory(root: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that may take 700 MiB beyond what its imports take."""
    program = f"""
import resource
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.verify.job import verify_job
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + {MEMORY},) * 2)
storage = LocalStorage({str(root)!r})
try:
    {code}
except Exception as error:
    print(isinstance(error, CorruptDataError), error)
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="no limit of memory here")
def test_a_record_of_gigabytes_takes_no_memory(root: Path, stage: StageHandle) -> None:
    """A sparse file in the next slot: its length is looked at first."""
    with (root / "job/log/0000000002").open("wb") as file:
        file.truncate(3 << 30)
    ended = in_little_memory(root, 'read_job(storage, "job")')
    assert ended.stdout.startswith("True"), ended
    assert "too long, expected at most 67108864 bytes, found 3221225472" in ended.stdout
    ended = in_little_memory(root, 'print(verify_job(storage, "job", Settings()).findings)')
    assert "too long" in ended.stdout, ended


@pytest.mark.parametrize(("name", "value"), [("partitions", 2**40), ("producers", 2**31)])
def test_a_description_beyond_all_limits_is_refused(
    root: Path, stage: StageHandle, name: str, value: int
) -> None:
    """Nobody takes memory for it, nor counts up to it."""
    key = root / stage.log().key(0)
    record = bound(
        encode_control("DESCRIBE", {**fields_of(stage), name: value}), stage.log().key(0)
    )
    key.unlink()
    key.write_bytes(record)
    with pytest.raises(IncompatibleError, match=f"DESCRIBE.{name}: expected at most"):
        open_stage(stage.storage, stage.path)
    findings = verify_job(stage.storage, "job", Settings()).findings
    assert any(f.key == stage.log().key(0) and name in f.found for f in findings)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"columns": ("id",)}, "DESCRIBE names 1 columns"),
        ({"columns": ("id", *"abcd")}, "DESCRIBE names 5 columns"),
        ({"keys": (7,)}, "keys of a DESCRIBE must be positions"),
        ({"keys": (-1,)}, "keys of a DESCRIBE must be positions"),
    ],
)
def test_a_description_that_does_not_fit_itself_is_damage(
    root: Path, stage: StageHandle, changed: dict[str, Any], expected: str
) -> None:
    """Columns without names, names without columns, keys that are no columns."""
    key = stage.log().key(0)
    record = encode_control("DESCRIBE", {**fields_of(stage), **changed})
    (root / key).unlink()
    (root / key).write_bytes(bound(record, key))
    with pytest.raises(CorruptDataError, match=expected) as e:
        open_stage(stage.storage, stage.path).schema  # noqa: B018 it is checked
    assert key in str(e.value)
    findings = [f for s in verify_job(stage.storage, "job", Settings()).stages for f in s.findings]
    assert any(f.key == key and expected in f.found for f in findings)


def fields_of(stage: StageHandle) -> dict[str, Any]:
    data = stage.log().read(0)
    assert data is not None
    return decode_control(data, name="DESCRIBE").fields
