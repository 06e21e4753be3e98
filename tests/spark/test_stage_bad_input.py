"""Errors in the functions of a stage: each is named, and nothing is stored."""

import ctypes
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle, Grouped
from durable_shuffle.serialization.errors import InvalidInputError

pytestmark = pytest.mark.spark

Batches = Iterator[pa.RecordBatch]


@pytest.fixture
def shuffle(session: SparkSession, root: str) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests")


def frame(session: SparkSession, rows: int = 60) -> DataFrame:
    return session.range(0, rows, 1, 2).selectExpr("id % 5 as k", "id as v", "'x' as s")


def segments(root: str) -> list[Path]:
    return list(Path(root).glob("*/*/segments/*/*"))


def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.rename_columns(["k", "w", "s"])


def retyped(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "v", batch.column("v").cast(pa.string()))


def with_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "k", pa.nulls(batch.num_rows, pa.int64()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed, "column 'v' of type int64 at position 1, found column 'w' of type int64"),
        (retyped, "column 'v' of type int64, found type string"),
        (lambda b: b.drop_columns(["s"]), "column 's' of type string, found no such column"),
        (
            lambda b: b.append_column("more", b.column("v")),
            "yields column 'more' of type int64, which is not declared",
        ),
        (with_nulls, "nulls in column 'k', which is declared as int64 not null"),
        (lambda b: b.to_pandas(), "must yield pyarrow.RecordBatch, found DataFrame"),
    ],
    ids=["renamed", "retyped", "fewer", "more", "nulls", "no Arrow"],
)
def test_map_with_another_schema_is_named(
    session: SparkSession,
    shuffle: DurableShuffle,
    root: str,
    change: Callable[[pa.RecordBatch], Any],
    message: str,
) -> None:
    """The error is typed and names column, expected and actual type; no data remains."""

    def wrong(batches: Batches) -> Iterator[Any]:
        for batch in batches:
            yield change(batch)

    schema = "k long not null, v long, s string"
    with pytest.raises(InvalidInputError, match=f"the map function.*{re.escape(message)}"):
        shuffle.stage(frame(session), map=wrong, keys="k", num_partitions=2, map_schema=schema)
    assert segments(root) == []
    assert not any(stage.status == "stored" for stage in shuffle.stages())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("string", pa.nulls(3)),
        ("array<string>", pa.array([[None], [], None], pa.list_(pa.null()))),
        ("struct<a:int>", pa.array([{"a": None}] * 3, pa.struct([("a", pa.null())]))),
        ("struct<a:int>", pa.nulls(3)),
        ("map<string,long>", pa.array([[("k", None)]] * 3, pa.map_(pa.string(), pa.null()))),
        ("timestamp", pa.array([1, -1, None], pa.timestamp("us"))),
        ("timestamp_ntz", pa.array([1, -1, None], pa.timestamp("us", "Asia/Tokyo"))),
        ("array<timestamp>", pa.array([[1], [], None], pa.list_(pa.timestamp("us")))),
        ("decimal(10,2)", pa.array([1, -2, None], pa.decimal128(10, 0))),
        ("decimal(38,2)", pa.array([1, -2, None], pa.decimal128(10, 1))),
    ],
    ids=str,
)
def test_a_map_function_may_yield_what_spark_takes(
    session: SparkSession, shuffle: DurableShuffle, declared: str, values: pa.Array
) -> None:
    """`mapInArrow` takes these Arrow types for the declared one; the rows are the same."""

    def make(batches: Batches) -> Batches:
        for batch in batches:
            ids = batch.column(0)
            yield pa.record_batch({"id": ids, "v": values.slice(0, batch.num_rows)})

    df, schema = session.range(0, 3, 1, 1), f"id long, v {declared}"
    stored = shuffle.stage(df, map=make, map_schema=schema, keys="id", num_partitions=2)
    assert sorted(stored.collect(), key=str) == sorted(
        df.mapInArrow(make, schema).collect(), key=str
    )


def test_a_decimal_that_would_lose_digits_is_refused(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """Another scale is taken only if each value keeps its digits."""

    def make(batches: Batches) -> Batches:
        for _batch in batches:
            yield pa.record_batch({"v": pa.array(["0.125"]).cast(pa.decimal128(5, 3))})

    with pytest.raises(InvalidInputError, match="column 'v': cannot store decimal"):
        shuffle.stage(
            session.range(0, 1, 1, 1),
            map=make,
            map_schema="v decimal(10,2)",
            keys=lambda b: [0] * b.num_rows,
            num_partitions=1,
        )


def test_reducer_with_another_schema_is_named(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """The action fails and names the column; the rows stay stored for a correct reducer."""

    def wrong(batches: Batches) -> Batches:
        for batch in batches:
            yield batch.select(["k", "s"])

    df = frame(session)
    found = shuffle.stage(df, keys="k", num_partitions=2, reduce=wrong, schema="k long, v long")
    with pytest.raises(PythonException, match="the reducer must yield column 'v' of type int64"):
        found.collect()
    nothing = shuffle.stage(
        df, keys="k", num_partitions=2, reduce=Grouped(lambda group: None), schema="k long"
    )
    with pytest.raises(PythonException, match=r"grouped reducer must return .* found None"):
        nothing.collect()
    assert shuffle.stage(df, keys="k", num_partitions=2).count() == 60
    assert [s.action for s in shuffle.report().stages] == ["computed", "reused", "reused"]


def test_map_that_yields_nothing_gives_an_empty_stage(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """No batches, or batches without rows, are valid output."""

    def silent(batches: Batches) -> Batches:
        for _ in batches:
            pass
        return iter(())

    def hollow(batches: Batches) -> Batches:
        for batch in batches:
            yield batch.slice(0, 0)

    for function in (silent, hollow):
        found = shuffle.stage(frame(session), map=function, keys="k", num_partitions=3)
        assert found.collect() == []
    assert [s.rows for s in shuffle.report().stages] == [0, 0]


def test_function_that_returns_no_iterator_is_named(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    def forgot(batches: Batches) -> Any:
        list(batches)

    with pytest.raises(InvalidInputError, match=r"return an iterator .* found NoneType"):
        shuffle.stage(frame(session), map=forgot, keys="k", num_partitions=3)


def test_map_that_raises_midway_commits_nothing(
    session: SparkSession, shuffle: DurableShuffle, root: str
) -> None:
    """The user's own error is raised; rows yielded before it never count."""

    def breaks(batches: Batches) -> Batches:
        yield next(batches)
        raise ValueError("my own trouble")

    with pytest.raises(PythonException, match="ValueError: my own trouble"):
        shuffle.stage(frame(session), map=breaks, keys="k", num_partitions=2)
    assert segments(root) == []
    assert not any(stage.status == "stored" for stage in shuffle.stages())


@pytest.mark.parametrize("argument", ["map", "keys", "reduce", "combine"])
def test_closure_that_cannot_travel_is_named(
    session: SparkSession, shuffle: DurableShuffle, argument: str
) -> None:
    """Before anything is written, the error names the argument and what to do."""
    lock = threading.Lock()

    def locked(batches: Any) -> Any:
        with lock:
            return batches

    arguments: dict[str, Any] = {"keys": "k", argument: locked}
    with pytest.raises(InvalidInputError, match=rf"{argument}=.*locked cannot be sent to workers"):
        shuffle.stage(frame(session), num_partitions=2, **arguments)
    assert shuffle.stages() == []


def test_input_is_not_writable(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A map function that writes into its input gets an error; the change has no other effect."""

    def mutates(batches: Batches) -> Batches:
        for batch in batches:
            np.asarray(batch.column("v"))[:] = -1
            yield batch

    with pytest.raises(PythonException, match="read-only"):
        shuffle.stage(frame(session), map=mutates, keys="k", num_partitions=2)


def test_buffers_may_be_used_again(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A map function that fills one buffer for every batch loses no row. Neither does one that
    forces a write into its input after the batch was yielded."""

    def reuses(batches: Batches) -> Batches:
        buffer = np.zeros(10, dtype=np.int64)
        for batch in batches:
            for start in range(0, batch.num_rows, 10):
                buffer[:] = batch.column("v").to_numpy()[start : start + 10]
                yield pa.record_batch([pa.array(buffer)], names=["v"])

    def forces(batches: Batches) -> Batches:
        for batch in batches:
            yield batch
            values = batch.column(0).buffers()[1]
            ctypes.memset(values.address, 0, values.size)

    df = frame(session).select("v")
    for function in (reuses, forces):
        found = shuffle.stage(df, map=function, keys="v", num_partitions=3)
        assert Counter(row.v for row in found.collect()) == Counter(range(60))


def test_reducer_need_not_read(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A reducer that reads nothing, or one batch, gives what it yields, once per partition."""

    def deaf(batches: Batches) -> Batches:
        yield pa.record_batch({"n": [1]})

    found = shuffle.stage(frame(session), keys="k", num_partitions=3, reduce=deaf, schema="n long")
    assert [row.n for row in found.collect()] == [1, 1, 1]


@pytest.mark.requirement("R-F46-23")
def test_limit_closes_the_reducer_and_is_no_end_of_input(
    session: SparkSession, shuffle: DurableShuffle, tmp_path: Path
) -> None:
    """An early end of the result cancels the reducer: its generator is closed where it is, and does
    not run the code after its input."""
    notes = tmp_path / "notes"
    notes.mkdir()
    folder = str(notes)

    def watched(batches: Batches) -> Batches:
        from pathlib import Path

        try:
            for batch in batches:
                for start in range(batch.num_rows):
                    yield batch.slice(start, 1)
            Path(folder, "end of input").touch()
        except GeneratorExit:
            Path(folder, "closed").touch()
            raise

    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    df = session.range(0, 300_000, 1, 2).selectExpr("1 as k", "id as v")
    found = shuffle.stage(df, keys="k", num_partitions=1, reduce=watched)
    assert len(found.limit(1).collect()) == 1
    for _ in range(3000):  # the worker ends after the answer has arrived; limited to 30 seconds
        if any(notes.iterdir()):
            break
        threading.Event().wait(0.01)
    assert [p.name for p in notes.iterdir()] == ["closed"]
    assert shuffle.stage(df, keys="k", num_partitions=1).count() == 300_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": "nope"}, "no such column: found='nope'; columns are k, v, s"),
        ({"keys": []}, "at least one column"),
        ({"num_partitions": 0}, "from 1 to 1000000, found 0"),
        ({"schema": "a lot of nonsense"}, "schema is no schema"),
        ({"schema": "int"}, "must name its columns"),
        ({"schema": "k long, v long"}, "leave schema out"),
        ({"map_schema": "k long"}, "without a map leave it out"),
        ({"sort_by": "q"}, "sort_by: no such column"),
        ({"reduce": Grouped(len, by="q"), "schema": "n long"}, "Grouped: no such column"),
        ({"reduce": Grouped(len, by="v"), "schema": "n long"}, "spread over partitions"),
        ({"reduce": Grouped(len), "keys": len, "schema": "n long"}, "needs by="),
        ({"name": "a/b"}, "name must be"),
    ],
    ids=range(12),
)
def test_wrong_arguments_are_named(
    session: SparkSession, shuffle: DurableShuffle, arguments: dict[str, Any], message: str
) -> None:
    """Refused before anything is written."""
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        shuffle.stage(frame(session), **{"keys": "k", "num_partitions": 2, **arguments})
    assert shuffle.stages() == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (lambda b: [0.5] * b.num_rows, "one integer per row"),
        (lambda b: np.zeros(1, int), "one integer per row"),
        (lambda b: pc.subtract(b.column("v"), 1), "ids from 0 to 2, found -1"),
        (lambda b: pa.nulls(b.num_rows, pa.int64()), "one integer per row"),
    ],
    ids=["floats", "too few", "negative", "nulls"],
)
def test_bad_ids_are_named(
    session: SparkSession, shuffle: DurableShuffle, ids: Any, message: str
) -> None:
    """A key function must return one id per row, within the number of partitions."""
    with pytest.raises(InvalidInputError, match=message):
        shuffle.stage(frame(session), keys=ids, num_partitions=3)
