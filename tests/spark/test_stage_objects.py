"""`stage_objects` instead of `partitionBy` and `groupByKey`, which are the reference."""

import datetime as dt
import decimal
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.cli.app import app
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings

pytestmark = pytest.mark.spark


@pytest.fixture
def shuffle(session: SparkSession, root: str) -> DurableShuffle:
    settings = Settings(writer_memory_bytes=1 << 16)
    return DurableShuffle(session, root, job="tests", version="1", settings=settings)


def placed(rdd: RDD[Any]) -> list[list[str]]:
    """The items of every partition, sorted, because `partitionBy` promises no order."""
    return rdd.mapPartitions(lambda items: [sorted(repr(item) for item in items)]).collect()


KEYS: list[Any] = [
    *range(-5, 50),
    *(f"key {i}" for i in range(20)),
    b"bytes",
    None,
    1.5,
    True,
    2**70,
    ("a", 1, None),
]


def value_of(key: Any) -> Any:
    return [
        key,
        (key, {"at": dt.datetime(2020, 1, 2, tzinfo=dt.UTC), 3: decimal.Decimal("1.50")}),
        {uuid.UUID(int=7), "x"},
    ]


def test_partition_by(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Pairs of many types are in Spark's partitions, and come back unchanged."""
    pairs = [(key, value_of(key)) for key in KEYS for _ in range(30)]
    rdd = session.sparkContext.parallelize(pairs, 3)
    found = shuffle.stage_objects(rdd, 5)
    native = rdd.partitionBy(5)
    assert placed(found) == placed(native)
    assert found.partitioner == native.partitioner
    assert found.getNumPartitions() == 5
    again = shuffle.stage_objects(rdd, 5)
    assert again.count() == len(pairs)
    assert [s.action for s in shuffle.report().stages] == ["computed", "reused"]
    assert shuffle.report().stages[0].rows == len(pairs)


def test_command_line_knows_pairs(
    session: SparkSession, shuffle: DurableShuffle, root: str
) -> None:
    """`verify` reads every byte of an object stage and finds a flipped one; `cat` shows pairs."""
    shuffle.stage_objects(session.sparkContext.parallelize([(i, {i}) for i in range(50)], 2), 3)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--json"])

    assert run("verify", root, "tests").exit_code == 0
    shown = run("cat", root, "tests", "objects", "--limit", "7")
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)["rows"]
    assert len(rows) == 7
    assert all(row["value"] == [row["key"]] for row in rows)
    (segment, *_) = Path(root).glob("*/*/segments/*/*")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    damaged = run("verify", root, "tests")
    assert damaged.exit_code == 1
    assert str(segment.name) in damaged.stdout


def test_partition_function(session: SparkSession, shuffle: DurableShuffle) -> None:
    """The user's function places pairs, also by negative and large numbers."""
    rdd = session.sparkContext.parallelize([(i, i) for i in range(100)], 2)
    place = lambda key: (key - 50) * 10**20  # noqa: E731 - as users write it
    found = shuffle.stage_objects(rdd, 7, partition_function=place)
    assert placed(found) == placed(rdd.partitionBy(7, place))


def test_group_by_key_moves_nothing_again(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Groups are Spark's, from the stored partitions, without another shuffle."""
    rdd = session.sparkContext.parallelize([(i % 13, i) for i in range(2000)], 3)

    def listed(grouped: RDD[Any]) -> list[tuple[Any, list[Any]]]:
        return sorted(grouped.mapValues(sorted).collect())

    found = shuffle.stage_objects(rdd, 4, group=True)
    assert listed(found) == listed(rdd.groupByKey(4))
    lineage = (found.toDebugString() or b"").decode()
    assert "PairwiseRDD" not in lineage
    assert "PairwiseRDD" in (rdd.groupByKey(4).toDebugString() or b"").decode()


def test_empty_and_small(session: SparkSession, shuffle: DurableShuffle) -> None:
    """No pairs at all, and fewer pairs than partitions."""
    empty = session.sparkContext.parallelize([(1, 1)], 2).filter(lambda pair: False)
    assert shuffle.stage_objects(empty, 3, name="none").collect() == []
    one = session.sparkContext.parallelize([(1, "x")], 2)
    assert shuffle.stage_objects(one, 64, name="one").collect() == [(1, "x")]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (7, "must be .key, value. pairs, found int"),
        ((1, 2, 3), "must be .key, value. pairs, found tuple"),
        ((1, range(3)), r"cannot hold values of type builtins\.range"),
    ],
    ids=["no pair", "three", "type"],
)
def test_bad_items_are_named(
    session: SparkSession, shuffle: DurableShuffle, root: str, item: Any, message: str
) -> None:
    """The error is typed and says what to change; nothing is left behind."""
    rdd = session.sparkContext.parallelize([(1, 2), item], 1)
    with pytest.raises(InvalidInputError, match=message):
        shuffle.stage_objects(rdd, 2)
    assert not list(Path(root).glob("*/*/segments/*/*"))


def test_wrong_arguments(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Refused before anything is written."""
    with pytest.raises(InvalidInputError, match=r"an RDD of .* is needed, found=DataFrame"):
        shuffle.stage_objects(session.range(3), 2)  # type: ignore[arg-type]
    rdd = session.sparkContext.parallelize([(1, 2)], 1)
    with pytest.raises(InvalidInputError, match="from 1 to 1000000, found 0"):
        shuffle.stage_objects(rdd, 0)
    assert shuffle.stages() == []
