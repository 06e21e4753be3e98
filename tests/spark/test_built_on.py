"""A stage that was built on another one follows it: rows computed again may be other rows."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import unstable_programs
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from unstable_programs import Arrival

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df, name="b"),
    "repartition": lambda s, df: s.repartition(df, 3, "k", name="b"),
    "query": lambda s, df: s.query(df.groupBy("k").agg(F.max("v").alias("v")), name="b"),
    "stage": lambda s, df: s.stage(df, keys="k", num_partitions=3, name="b"),
}


@pytest.fixture(scope="module", autouse=True)
def _sent_by_value() -> Iterator[None]:
    register_pickle_by_value(unstable_programs)
    yield
    unregister_pickle_by_value(unstable_programs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("again", ["released", "never"])
def test_what_was_built_on_earlier_rows_is_computed_again(
    session: SparkSession, root: str, tmp_path: Path, call: str, again: str
) -> None:
    """While the lower stage is the same, both are reused; if it is computed again, neither is."""
    session.conf.set("spark.sql.shuffle.partitions", "4")
    arrival = Arrival(tmp_path / "arrival")

    def run(shuffle: DurableShuffle) -> tuple[list[str], set[object], set[object]]:
        lower = shuffle.checkpoint(arrival.rows(session).groupBy("k").agg(F.first("p").alias("v")))
        upper = CALLS[call](shuffle, lower)
        rows = [{(row.k, row.v) for row in df.select("k", "v").collect()} for df in (lower, upper)]
        return [stage.action for stage in shuffle.report().stages], *rows

    arrival.turn(1)
    decisions, *rows = run(DurableShuffle(session, root, job="tests"))
    assert decisions == ["computed", "computed"]
    assert rows[0] == rows[1]
    arrival.turn(2)
    decisions, *same = run(DurableShuffle(session, root, job="tests"))
    assert (decisions, same) == (["reused", "reused"], rows)
    shuffle = DurableShuffle(session, root, job="tests")
    if again == "released":
        assert shuffle.release("checkpoint")
    else:
        df = arrival.rows(session).groupBy("k").agg(F.first("p").alias("v"))
        DurableShuffle(session, root, job="tests", reuse="never").checkpoint(df)
    decisions, *other = run(DurableShuffle(session, root, job="tests"))
    assert decisions == ["computed" if again == "released" else "reused", "computed"]
    assert other[0] == other[1]
    assert other[0] != rows[0], "rows do not depend on the order of arrival"
    decisions, *last = run(DurableShuffle(session, root, job="tests"))
    assert (decisions, last) == (["reused", "reused"], other)
