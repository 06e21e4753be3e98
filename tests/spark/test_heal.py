"""Damage to stored segments heals without a person: the run that follows the one that met it gives
the right rows, and only the producers concerned run again."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle, Settings
from durable_shuffle.shuffle.repair import heal
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.verify.job import verify_job

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here lags, so missing objects are looked for again without a pause."""
    monkeypatch.setattr(heal, "_SETTLE_SECONDS", 0.0)


def rows(df: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, df.collect()))


def segments(root: str, producer: int) -> list[Path]:
    return sorted(Path(root).rglob(f"segments/*/p{producer:06d}-*.seg"))


def remove(path: Path, _other: Path) -> None:
    path.unlink()


def empty(path: Path, _other: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path, _other: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def zero(path: Path, _other: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(len(data) - 100))


def replace(path: Path, other: Path) -> None:
    shutil.copy(other, path)


def flip(path: Path, _other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


Hurt = Callable[[Path, Path], None]
Run = Callable[[DurableShuffle], DataFrame]


def index_of(root: str) -> Path:
    return next(iter(sorted(Path(root).rglob("index/*"))))


def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (
        pa.Table.from_batches(list(batches))
        .group_by("k")
        .aggregate([("v", "sum")])
        .rename_columns(["k", "s"])
        .to_batches()
    )


def calls(session: SparkSession, df: DataFrame) -> dict[str, Run]:
    """Return the calls that store `df`, 4 producers each, and read it back."""
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "3")
    query = df.groupBy("k").agg(F.sum("v").alias("s"))
    return {
        "checkpoint": lambda ds: ds.checkpoint(df),
        "repartition": lambda ds: ds.repartition(df, 3, "k"),
        "query": lambda ds: ds.query(query),
        "stage": lambda ds: ds.stage(
            df, keys="k", num_partitions=3, reduce=sums, schema="k long, s long"
        ),
    }


@pytest.mark.parametrize(
    ("call", "hurt"),
    [
        ("checkpoint", remove),
        ("checkpoint", cut),
        ("repartition", empty),
        ("repartition", replace),
        ("query", zero),
        ("stage", flip),
    ],
)
def test_a_damaged_segment_is_stored_again_by_the_next_run(
    session: SparkSession, root: str, counter: Any, call: str, hurt: Hurt
) -> None:
    """The run that meets the damage fails, as its frame is read by the user's own action. Two
    producers are damaged; the reader names one at most, and exactly these two run again."""
    df = session.range(0, 3000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    wanted = calls(session, df.mapInArrow(counter.function, df.schema))[call]

    def run() -> tuple[DurableShuffle, DataFrame]:
        shuffle = DurableShuffle(session, root, job="tests", version="1")
        return shuffle, wanted(shuffle)

    expected = rows(run()[1])
    for producer in (0, 2):
        hurt(segments(root, producer)[0], segments(root, 1)[0])
    with pytest.raises(Exception, match=r"NotFoundError|CorruptDataError"):
        run()[1].collect()
    shuffle, back = run()
    assert rows(back) == expected
    (stage,) = shuffle.report().stages
    assert (stage.decision, stage.producers_run) == ("repair", 2)
    assert "a reader met damage: data of 2 producers is lost" in stage.why
    assert counter.runs() == {0: 2, 1: 1, 2: 2, 3: 1}
    shuffle, back = run()
    assert rows(back) == expected
    assert shuffle.report().stages[0].decision == "reuse"
    assert verify_job(LocalStorage(root), "tests", Settings()).ok


@pytest.mark.parametrize("hurt", [remove, cut])
def test_a_lost_index_is_written_again_and_no_producer_runs(
    session: SparkSession, root: str, counter: Any, hurt: Hurt
) -> None:
    """The COMMITs say all that the index says."""
    df = session.range(0, 300, 1, 2).mapInArrow(counter.function, "id long")

    def run(**more: Any) -> tuple[DurableShuffle, DataFrame]:
        shuffle = DurableShuffle(session, root, job="tests", version="1", **more)
        return shuffle, shuffle.checkpoint(df)

    expected = rows(run()[1])
    hurt(index_of(root), index_of(root))
    for _ in range(2):  # without healing, somebody can look first
        with pytest.raises(Exception, match=r"NotFoundError|CorruptDataError"):
            run(settings=Settings(heal=False))[1].collect()
    shuffle, back = run()
    assert rows(back) == expected
    (stage,) = shuffle.report().stages
    assert (stage.decision, stage.producers_run) == ("reuse", 0)
    assert stage.why.endswith("a reader met damage: the index was written again")
    assert counter.runs() == {0: 1, 1: 1}


@pytest.mark.parametrize("lost", ["SEAL", "COMMIT"])
def test_a_lost_record_is_written_again_or_does_not_matter(
    session: SparkSession, root: str, counter: Any, lost: str
) -> None:
    """Without its SEAL a stage is sealed again; a COMMIT is not read again behind it."""
    df = session.range(0, 300, 1, 2).mapInArrow(counter.function, "id long")

    def run() -> DataFrame:
        return DurableShuffle(session, root, job="tests", version="1").checkpoint(df)

    expected = rows(run())
    log, slot = ("checkpoint-*/log", 1) if lost == "SEAL" else ("*/producers/p000001", 0)
    (record,) = Path(root).glob(f"tests/{log}/{slot:010d}")
    record.unlink()
    assert rows(run()) == expected
    assert rows(run()) == expected
    assert counter.runs() == {0: 1, 1: 1}


def test_a_stage_that_cannot_be_mended_is_stored_afresh(
    session: SparkSession, root: str, counter: Any
) -> None:
    """A COMMIT is lost, too: without it, no new index can be made of the others."""
    df = session.range(0, 300, 1, 2).mapInArrow(counter.function, "id long")

    def run() -> tuple[DurableShuffle, DataFrame]:
        shuffle = DurableShuffle(session, root, job="tests", version="1")
        return shuffle, shuffle.checkpoint(df)

    expected = rows(run()[1])
    segments(root, 0)[0].unlink()
    next(iter(Path(root).glob("tests/*/producers/p000001/*"))).unlink()
    with pytest.raises(Exception, match="NotFoundError"):
        run()[1].collect()
    shuffle, back = run()
    assert rows(back) == expected
    (stage,) = shuffle.report().stages
    assert (stage.decision, stage.producers_run) == ("fresh", 2)
    assert "the stored stage was damaged: a control record cannot be rebuilt" in stage.why
    assert rows(run()[1]) == expected
    assert counter.runs() == {0: 2, 1: 2}


def test_rows_that_may_differ_are_stored_afresh(session: SparkSession, root: str) -> None:
    """Producers of two runs are mixed only if that is proven to be harmless."""
    df = session.range(0, 300, 1, 2).withColumn("r", F.rand()).repartition(3)

    def run() -> tuple[DurableShuffle, DataFrame]:
        shuffle = DurableShuffle(session, root, job="tests", version="1")
        return shuffle, shuffle.repartition(df, 2, "id")

    run()
    segments(root, 0)[0].unlink()
    with pytest.raises(Exception, match="NotFoundError"):
        run()[1].collect()
    shuffle, back = run()
    assert back.count() == 300
    assert shuffle.report().stages[0].decision == "fresh"
