"""Compaction when a stage is sealed: the same rows in the same partitions, now and when reused."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.repair import compaction
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.testing.s3_server import run_s3_server
from durable_shuffle.shuffle.verify.job import verify_job

pytestmark = pytest.mark.spark


def placed(df: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, df.select("*", F.spark_partition_id()).collect()))


def test_tasks_write_the_segments(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one segment is not enough, each is written by a Spark task; every byte verifies."""

    def never(*_: object) -> list[bytes]:
        raise AssertionError("the driver copied extents itself")

    monkeypatch.setattr(compaction, "_copied", never)
    settings = Settings(
        writer_memory_bytes=1 << 16, compact_small_bytes=1 << 20, compression="none"
    )
    df = session.range(0, 30_000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    shuffle = DurableShuffle(session, root, job="tests", settings=settings)
    back = shuffle.repartition(df, 5, "k")
    assert placed(back) == placed(df.repartition(5, "k"))
    compacted = [p for p in Path(root).rglob("*.seg") if "compacted" in p.parts]
    assert len(compacted) > 3
    assert all(path.stat().st_size <= 1 << 16 for path in compacted)
    report = verify_job(LocalStorage(root), "tests", settings)
    assert report.ok, report.findings
    for path in (p for p in Path(root).rglob("*.seg") if "segments" in p.parts):
        path.unlink()  # no reader uses them any more
    assert placed(back) == placed(df.repartition(5, "k"))


def test_stages_are_compacted_on_seal(session: SparkSession, root: str) -> None:
    """Every task reads the compacted segment; a later driver without the setting reuses it."""
    df = session.range(0, 3000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    expected = placed(df.repartition(5, "k"))
    for settings, decision in (
        (Settings(compact_small_bytes=1 << 20), "computed"),
        (None, "reused"),
    ):
        given = {} if settings is None else {"settings": settings}
        shuffle = DurableShuffle(session, root, job="tests", **given)
        back = shuffle.repartition(df, 5, "k")
        assert placed(back) == expected
        (stage,) = shuffle.report().stages
        assert stage.action == decision
        assert stage.map_tasks_rerun == 0
    compacted = [p for p in Path(root).rglob("*.seg") if "compacted" in p.parts]
    originals = [p for p in Path(root).rglob("*.seg") if "segments" in p.parts]
    assert (len(compacted), len(originals)) == (1, 4)
    for path in originals:
        path.unlink()  # no reader uses them any more
    assert placed(back) == expected


@pytest.mark.s3
def test_an_object_store_is_compacted_on_seal_by_default(
    session: SparkSession, tmp_path: Path
) -> None:
    """Short extents of 32 producers, without any setting."""
    df = session.range(0, 640, 1, 32).selectExpr("id % 97 AS k", "id AS v")
    with run_s3_server(tmp_path, clock=SystemClock()) as server:
        url = f"s3://{server.bucket}/spark"
        with DurableShuffle(session, url, job="tests", storage_options=server.options) as shuffle:
            back = shuffle.repartition(df, 2, "k")
            assert placed(back) == placed(df.repartition(2, "k"))
        keys = [info.key for info in open_storage(url, server.options).list("tests/")]
        assert any("/compacted/" in key for key in keys)
