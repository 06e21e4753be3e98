"""Names that want out of their place, two jobs on one root, roots that are read-only or vanish.

The oracle is the disk, walked by the test, and arithmetic on the numbers of the rows.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealed_stage import SealedStage, sealed_stage
from small_stage import SeededIds, read_rows
from stored_job import stored_rows, stored_stage
from whole_stage import JOB, PARTITIONS, expected, published, run_whole_stage

from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import forget_views, open_view
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.layout import ConsumerPath, StagePath
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.release.gc_run import collect_garbage
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, Created, Exists
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage

NASTY = (
    *("", ".", "..", "../up", "a/../../b", "/etc/x", "a/b", "a\\b", "C:x", "~root", ".hidden"),
    *("-rf", "a b", "a\tb", "a\nb", "a\0b", "a%2e%2e", "a*", "a?", "[a]", "{a}", "$HOME", "`id`"),
    *(
        "a;b",
        "a|b",
        "a&b",
        "a#b",
        "a@b",
        "a:b",
        "a'b",
        'a"b',
        "é",
        "\u202egnp",
        "\ufeffa",
        "\ud83d\ude00",
    ),
    *("a" * 101, "a" * 5000),
)


@pytest.fixture(autouse=True)
def _one_process_each() -> Iterator[None]:
    """Views of other tests are not this one's."""
    forget_views()
    yield
    forget_views()


def files(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def uses(name: str, storage: LocalStorage, made: SealedStage) -> list[Callable[[], object]]:
    """Each way in which a name becomes part of a key."""
    stage, ids = made.stage, SeededIds(random.Random(5))
    return [
        lambda: JobLog.claim(storage, name, ids.new_id()),
        lambda: read_job(storage, name),
        lambda: StagePath(name, "stage", "0" * 32, "0" * 32).prefix,
        lambda: StagePath("job", name, "0" * 32, "0" * 32).prefix,
        lambda: StagePath("job", "stage", name, "0" * 32).prefix,
        lambda: StagePath("job", "stage", "0" * 32, name).prefix,
        lambda: ConsumerPath("job", name, "task").prefix,
        lambda: ConsumerPath("job", "consumer", name).prefix,
        lambda: open_view(stage, 0, consumer=name, settings=Settings(), ids=ids),
        lambda: open_view(stage, 0, consumer="c", task=name, settings=Settings(), ids=ids),
        lambda: sealed_stage(storage, ids, job=name),
        lambda: collect_garbage(
            storage,
            name,
            ids=ids,
            clock=SystemClock(),
            settings=Settings(),
            older_than_seconds=0,
            delete=True,
        ),
    ]


def test_odd_names_reach_no_key(tmp_path: Path) -> None:
    """Whatever the name is for, it is refused as the caller's mistake, and nothing is written."""
    storage = LocalStorage(tmp_path / "deep" / "root")
    made = sealed_stage(storage, SeededIds(random.Random(4)), producers=1, rows=20)
    before = files(tmp_path)
    for name in NASTY:
        for number, use in enumerate(uses(name, storage, made)):
            try:
                use()
            except InvalidInputError:
                continue
            pytest.fail(f"use {number} takes the name {name!r}")
    assert files(tmp_path) == before


@given(name=st.text(max_size=120))
def test_any_name_stays_in_its_place(name: str) -> None:
    """Refused, or one part of a key of the job that it was given for."""
    try:
        stage = StagePath("job", name, "0" * 32, "1" * 32)
        consumer = ConsumerPath("job", name, name)
    except InvalidInputError:
        return
    assert stage.prefix == f"job/{name}-{'0' * 32}-{'1' * 32}/"
    assert consumer.prefix == f"job/consumers/{name}/{name}/"
    # pathlib would not resolve ".."
    assert os.path.normpath(consumer.prefix) + "/" == consumer.prefix
    assert name.isascii()
    assert not set(name) & set("/\\ *?")


def stored(storage: LocalStorage, job: str, rows: int) -> tuple[JobLog, StageHandle]:
    """A job with one stage; two of them have the same names and ids but for the job's."""
    ids = SeededIds(random.Random(6))
    log = JobLog.claim(storage, job, ids.new_id())
    return log, stored_stage(log, storage, job=job, rows=(rows, rows), ids=ids)


def assert_reads_right(stage: StageHandle, rows: int) -> None:
    sealed = require_seal(stage)
    for k in range(5):
        found = [row["id"] for row in read_rows(stage, sealed, k)]
        every = [n for p in range(2) for n in stored_rows(p, rows).column("id").to_pylist()]
        assert found == [n for n in every if n % 1_000_000 % 4 == k]


@pytest.mark.parametrize(
    ("one", "other"), [("a", "b"), ("a", "a-b"), ("a.b", "a"), ("log", "consumers"), ("A", "a")]
)
def test_two_jobs_on_one_root_do_not_meet(tmp_path: Path, one: str, other: str) -> None:
    """Release and garbage collection of one change no byte of the other, whatever their names."""
    storage, ids = LocalStorage(tmp_path), SeededIds(random.Random(7))
    log, stage = stored(storage, one, 30)
    _, kept = stored(storage, other, 50)
    assert_reads_right(stage, 30)
    assert_reads_right(kept, 50)
    before = files(tmp_path / other)
    for _ in range(2):
        collect_garbage(
            storage,
            one,
            ids=ids,
            clock=SystemClock(),
            settings=Settings(),
            older_than_seconds=0,
            delete=True,
        )
    assert_reads_right(stage, 30)
    log = JobLog.claim(storage, one, ids.new_id())
    assert release_stage_of(log, storage, stage.path, ids).objects > 0
    assert files(tmp_path / other) == before
    assert_reads_right(kept, 50)


_READER = """
import os, random, sys
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.log.stage import open_stage, require_seal
from small_stage import SeededIds, read_rows
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.consume.open_view import open_view
storage, ids = LocalStorage(sys.argv[1]), SeededIds(random.Random(1))
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
(path,) = read_job(storage, "job").stages.values()
stage = open_stage(storage, path)
print(sum(len(read_rows(stage, require_seal(stage), k)) for k in range(5)))
for use in (
    lambda: JobLog.claim(storage, "job", ids.new_id()),
    lambda: JobLog.claim(storage, "new", ids.new_id()),
    lambda: open_view(stage, 0, consumer="c", ids=ids),
    lambda: storage.delete([stage.log().key(0)]),
):
    try:
        use()
    except InvalidInputError as error:
        print(sys.argv[1] in str(error) and "Permission" in str(error))
"""


def test_a_read_only_root_can_be_read() -> None:
    """Readers need no right to write; whoever writes is told the path that it may not write."""
    root = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others
    try:
        stored(LocalStorage(root), "job", 40)
        root.chmod(0o755)
        before = files(root)
        for folder, _, _ in os.walk(root):
            Path(folder).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", _READER, str(root)],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.stdout.split() == ["80", *["True"] * 4], done.stderr
        assert files(root) == before
    finally:
        for folder, _, _ in os.walk(root):
            Path(folder).chmod(0o755)
        shutil.rmtree(root, ignore_errors=True)


class Vanishing(MemoryStorage):
    """Everything is gone before its nth call."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.nth, self.calls = nth, 0

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        self._count()
        return super().read(key, most_bytes)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        self._count()
        return super().put_if_absent(key, data)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            self._objects.clear()


def test_a_root_that_vanishes_gives_no_wrong_rows(seed: int) -> None:
    """Whenever everything is deleted behind its back, a run says so, or all its rows are right."""
    whole = Vanishing(0)
    run_whole_stage(whole, 1)
    calls = whole.calls
    assert published(whole) == {k: expected(k) for k in range(PARTITIONS)}
    failed = 0
    draw = random.Random(seed)
    for nth in draw.sample(range(2, calls + 1), 40):
        storage = Vanishing(nth)
        try:
            run_whole_stage(storage, 1)  # compares what it reads itself
        except DurableShuffleError:
            failed += 1
        assert storage.calls >= nth
    assert failed > 10


def test_a_folder_that_vanishes_is_told(tmp_path: Path) -> None:
    """Reading says what is missing; a later run starts afresh."""
    root = tmp_path / "root"
    _, stage = stored(LocalStorage(root), "job", 40)
    sealed = require_seal(stage)
    shutil.rmtree(root)
    with pytest.raises(NotFoundError, match=str(root)):
        read_rows(stage, sealed, 0)
    with pytest.raises(DurableShuffleError, match="not sealed"):
        require_seal(stage)
    run_whole_stage(LocalStorage(root), 1)
    assert published(LocalStorage(root)) == {k: expected(k) for k in range(PARTITIONS)}
    assert (root / JOB).is_dir()
