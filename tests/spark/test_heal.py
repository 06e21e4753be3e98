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
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
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


def stored_stage_of(root: str, report: StageReport) -> StageHandle:
    path = StagePath("tests", report.name, report.fingerprint, report.incarnation)
    return open_stage(LocalStorage(root), path)


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


@pytest.mark.sampled(2)
@pytest.mark.requirement("R-F135-22")
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
    assert (stage.action, stage.map_tasks_run) == ("repaired", 2)
    assert "a reader met damage: data of 2 map tasks is lost" in stage.why
    assert "data of 2 map tasks is lost" in " ".join(str(shuffle.report()).split())
    from durable_shuffle.jobs.inspect.details import details_text, stage_details  # not in workers

    details = stage_details(stored_stage_of(root, stage), released=False)
    assert (details["suspect"], details["damaged_producers"]) == ("", [])
    assert details["repairs"] == [{"producers": [0, 2], "cause": "damaged map tasks ran again"}]
    assert "2 map tasks: damaged map tasks ran again" in details_text(details)
    assert counter.runs() == {0: 2, 1: 1, 2: 2, 3: 1}
    shuffle, back = run()
    assert rows(back) == expected
    assert shuffle.report().stages[0].action == "reused"
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
    assert (stage.action, stage.map_tasks_run) == ("reused", 0)
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
    assert (stage.action, stage.map_tasks_run) == ("computed", 2)
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
    assert shuffle.report().stages[0].action == "computed"


# -- in the same run


def test_transparent_heals_in_the_run_that_meets_the_damage(
    session: SparkSession, root: str, counter: Any, tmp_path: Path
) -> None:
    """An action that yields rows, and a write in mode overwrite, are called again. An append might
    double rows, so its run fails, and the next one is right."""
    df = session.range(0, 3000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    df = df.mapInArrow(counter.function, df.schema)
    query = df.groupBy("k").agg(F.sum("v").alias("s"))
    session.conf.set("spark.sql.shuffle.partitions", "3")
    out = str(tmp_path / "out")

    def run(act: Callable[[], Any]) -> tuple[Any, DurableShuffle]:
        shuffle = DurableShuffle(session, root, job="tests", version="1")
        with shuffle.transparent():
            return act(), shuffle

    expected = Counter(map(tuple, run(lambda: query.collect())[0]))
    acts: list[tuple[Callable[[], Any], Callable[[Any], bool]]] = [
        (lambda: query.collect(), lambda found: Counter(map(tuple, found)) == expected),
        (
            lambda: query.write.mode("overwrite").parquet(out),
            lambda _: rows(session.read.parquet(out)) == expected,
        ),
    ]
    for number, (act, is_right) in enumerate(acts):
        segments_now(root, number)[-1].unlink()
        found, shuffle = run(act)
        assert is_right(found)
        ran = [s.map_tasks_run for s in shuffle.report().stages if s.action == "repaired"]
        assert ran == [1]
        assert counter.runs()[number] == 2
    segments_now(root, 2)[-1].unlink()
    with pytest.raises(Exception, match="NotFoundError"):
        run(lambda: query.write.mode("append").parquet(out))
    run(lambda: query.write.mode("append").parquet(out))
    assert rows(session.read.parquet(out)) == expected + expected
    assert counter.runs() == {0: 2, 1: 2, 2: 2, 3: 1}


def segments_now(root: str, producer: int) -> list[Path]:
    """Return the segments of a producer, the newest last."""
    return sorted(segments(root, producer), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("what", ["segment", "index"])
def test_a_piece_of_a_query_above_a_damaged_cut_runs_again(
    session: SparkSession, root: str, counter: Any, what: str
) -> None:
    """The stage above is not stored yet. What is damaged below is mended, and nothing else that
    was stored runs again."""
    df = session.range(0, 2000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    df = df.mapInArrow(counter.function, df.schema)
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "3")
    below = df.groupBy("k").agg(F.sum("v").alias("s"))
    wanted = below.groupBy(F.col("s") % 5).count()

    def run(frame: DataFrame) -> tuple[Counter[tuple[object, ...]], DurableShuffle]:
        shuffle = DurableShuffle(session, root, job="tests", version="1")
        return rows(shuffle.query(frame)), shuffle

    run(below)
    if what == "segment":
        flip(segments(root, 1)[0], Path())
    else:
        index_of(root).unlink()
    found, shuffle = run(wanted)
    assert found == rows(wanted)
    ran = {0: 2, 1: 2 + (what == "segment"), 2: 2, 3: 2}  # one of them by the line above
    assert counter.runs() == ran
    low, high = shuffle.report().stages
    mended = ("repaired", 1) if what == "segment" else ("reused", 0)
    assert (low.action, low.map_tasks_run) == mended
    assert "a reader met damage" in low.why
    assert high.map_tasks_run == high.map_tasks


def test_a_stage_over_a_damaged_result_of_a_stage_heals(
    session: SparkSession, root: str, counter: Any
) -> None:
    """The map tasks of the upper stage run the reducer of the lower one. Three stages: the lowest
    is the damaged one."""
    df = session.range(0, 2000, 1, 4).selectExpr("id % 97 AS k", "id AS v")

    def run(*, top: bool) -> tuple[DataFrame, DurableShuffle]:
        shuffle = DurableShuffle(session, root, job="tests", version="1")
        low = shuffle.stage(
            df,
            map=counter.function,
            keys="k",
            num_partitions=3,
            reduce=sums,
            schema="k long, s long",
        )
        middle = shuffle.stage(low, keys="s", num_partitions=2, name="middle")
        if top:
            middle = shuffle.stage(middle, keys="k", num_partitions=2, name="top")
        return middle, shuffle

    expected = rows(run(top=False)[0])
    for path in Path(root).glob("tests/stage-*/segments/*/p000002-*"):
        path.unlink()
    for path in Path(root).glob("tests/middle-*/segments/*/p000000-*"):
        path.unlink()
    back, shuffle = run(top=True)
    assert rows(back) == expected
    repaired = {s.name: s.map_tasks_run for s in shuffle.report().stages if s.action == "repaired"}
    assert repaired == {"stage": 1, "middle": 1}
    assert counter.runs() == {0: 1, 1: 1, 2: 2, 3: 1}


def test_consume_heals_and_gives_each_row_once(
    session: SparkSession, root: str, counter: Any
) -> None:
    """Tasks that have finished do not run again; those that met damage go on where they were."""
    df = session.range(0, 3000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    df = df.mapInArrow(counter.function, df.schema)
    shuffle = DurableShuffle(session, root, job="tests", version="1")
    stored = shuffle.repartition(df, 3, "k")
    for producer in (1, 3):
        flip(segments(root, producer)[0], Path())
    back = shuffle.consume(
        stored, consumer="c", process=lambda batch: batch, schema="k long, v long"
    )
    assert back is not None
    assert rows(back) == rows(session.range(0, 3000, 1, 4).selectExpr("id % 97 AS k", "id AS v"))
    decisions = [(s.action, s.map_tasks_run) for s in shuffle.report().stages]
    assert decisions == [("computed", 4), ("repaired", 2)]
    assert counter.runs() == {0: 1, 1: 2, 2: 1, 3: 2}


def test_damage_that_comes_back_is_an_error_in_the_end(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds: a storage that loses what it was given is not asked for ever."""
    df = session.range(0, 300, 1, 2)
    shuffle = DurableShuffle(session, root, job="tests")
    stored = shuffle.checkpoint(df)
    real, rounds = shuffle._consume.run, []

    def lose_then_run(*arguments: Any) -> Any:
        rounds.append(1)
        segments_now(root, 0)[-1].unlink()
        return real(*arguments)

    monkeypatch.setattr(shuffle._consume, "run", lose_then_run)
    with pytest.raises(NotFoundError):
        shuffle.consume(stored, consumer="c", process=lambda batch: None)
    assert len(rounds) == 4
