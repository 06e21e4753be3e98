"""Where requests take long, map tasks start beside the records behind which they may store."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipelines import until
from pyspark.sql import DataFrame, SparkSession
from sealing import Watched, two_exchanges

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs import claims
from durable_shuffle.jobs.engine import classic
from durable_shuffle.jobs.stages import store
from durable_shuffle.serialization.errors import ConflictError, FencedError
from durable_shuffle.shuffle.storage.local import LocalStorage

pytestmark = pytest.mark.spark

_STORED = "[ps]*"
"""Of a stage's folder: producers, segments."""


@pytest.fixture(autouse=True)
def _far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the folder count as a storage that is far."""
    monkeypatch.setattr(store, "is_far", lambda _: True)


def marked(spark: SparkSession, started: Path) -> DataFrame:
    """Rows of four tasks that leave a file when they begin to compute."""
    started.mkdir()
    folder = str(started)

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import uuid

        Path(folder, uuid.uuid4().hex).touch()
        yield from batches

    return spark.range(0, 1000, 1, 4).mapInArrow(mark, "id long")


def held_back(patch: pytest.MonkeyPatch, record: str, first: Callable[[], None]) -> None:
    """Let something happen before a record of the stage or of the job is put."""
    put = LocalStorage.put_if_absent

    def late(self: LocalStorage, key: str, content: bytes) -> Any:
        if key.startswith(record) or (key.endswith(record) and "/tiny-" in key):
            first()
        return put(self, key, content)

    patch.setattr(LocalStorage, "put_if_absent", late)


@pytest.mark.parametrize("record", ["/log/0000000000", "tests/log/"], ids=["DESCRIBE", "STAGE"])
def test_tasks_compute_beside_each_record_and_store_behind_it(
    session: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    """However long it takes."""
    df, stored = marked(session, tmp_path / "started"), list[Path]()

    def first() -> None:
        until(lambda: any((tmp_path / "started").iterdir()), "tasks compute meanwhile")
        assert not threading.Event().wait(2)
        stored.extend(Path(root, "tests").glob(f"tiny-*/{_STORED}"))

    with DurableShuffle(session, root, job="tests") as shuffle:
        shuffle.checkpoint(session.range(3), name="workers").count()
        with monkeypatch.context() as patch:
            held_back(patch, record, first)
            frame = shuffle.checkpoint(df, name="tiny", version="1")
        assert frame.count() == 1000
    assert not stored
    assert list(Path(root, "tests").glob(f"tiny-*/{_STORED}"))


def test_a_driver_that_may_not_enter_a_stage_stores_nothing(
    session: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks are cancelled, long before their patience ends, and its error is the one."""
    older = DurableShuffle(session, root, job="tests")
    older.checkpoint(session.range(3), name="workers").count()
    claims._held.clear()  # a driver of its own, as in another process
    df, started = marked(session, tmp_path / "started"), tmp_path / "started"

    def first() -> None:
        until(lambda: any(started.iterdir()), "tasks compute meanwhile")

    with DurableShuffle(session, root, job="tests"), monkeypatch.context() as patch:
        held_back(patch, "/log/0000000000", first)
        with pytest.raises(FencedError):
            older.checkpoint(df, name="tiny", version="1")
    assert not list(Path(root, "tests").glob(f"tiny-*/{_STORED}"))
    assert not session.sparkContext.statusTracker().getActiveJobsIds()


@pytest.mark.parametrize("fails", [False, True])
def test_the_stage_above_computes_beside_the_seal_and_stores_behind_it(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """If there is no SEAL, nothing above is stored."""
    jobs, run = threading.Semaphore(0), classic.results_of_pieces
    stored: list[Path] = []

    def counted(*given: Any, **more: Any) -> Any:
        jobs.release()
        return run(*given, **more)

    def before(watched: Watched, stage: str) -> None:
        if stage == watched.described[0]:
            assert watched.second.wait(60)
            assert jobs.acquire(timeout=60)
            assert jobs.acquire(timeout=60), "tasks of the stage above wait for the SEAL"
            assert not threading.Event().wait(2)
            stored.extend(Path(root, watched.described[1]).glob(_STORED))
            if fails:
                raise ConflictError("no SEAL today")

    df = two_exchanges(session)
    with DurableShuffle(session, root, job="tests") as shuffle:
        shuffle.checkpoint(session.range(3), name="workers").count()
        with monkeypatch.context() as patch:
            patch.setattr(classic, "results_of_pieces", counted)
            watched = Watched(patch, before)
            if fails:
                with pytest.raises(ConflictError, match="no SEAL today"):
                    shuffle.query(df)
            else:
                assert sorted(shuffle.query(df).collect()) == sorted(df.collect())
    assert not stored
    assert bool(list(Path(root, watched.described[1]).glob(_STORED))) is not fails
