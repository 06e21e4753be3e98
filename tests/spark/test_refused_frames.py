"""DataFrames and names that are refused, by name."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import InvalidInputError

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[[DurableShuffle, DataFrame], object]] = {
    "durable": lambda s, df: s.durable(df),
    "repartition": lambda s, df: s.repartition(df, 2, "id"),
    "stage": lambda s, df: s.stage(df, keys="id", num_partitions=2),
    "query": lambda s, df: s.query(df),
    "explain": lambda s, df: s.explain.query(df),
    "consume": lambda s, df: s.consume(df, consumer="c", process=lambda rows: None),
}


def test_observed_frames_are_refused(session: SparkSession, root: str) -> None:
    """`Observation.get` would wait forever, both in the run that stores and in a run that reuses.
    So no call accepts such a frame, at any depth of the plan. An observation after the call gets
    its value."""
    shuffle = DurableShuffle(session, root, job="tests")
    plain = session.range(0, 10, 1, 2)

    def observed() -> DataFrame:
        return plain.observe(Observation("counts"), F.count(F.lit(1)).alias("n"))

    observed().createOrReplaceTempView("observed")
    frames = {
        "itself": observed(),
        "by name": plain.observe("counts", F.count(F.lit(1)).alias("n")),
        "below": observed().where("id > 2").groupBy("id").count().select("id"),
        "in a join": plain.join(observed(), "id"),
        "in a subquery": session.sql(
            "SELECT id FROM range(10) WHERE id > (SELECT max(id) - 3 FROM observed)"
        ),
    }
    for where, df in frames.items():
        for name, call in CALLS.items():
            print(f"{name} of a frame with an observation: {where}")
            with pytest.raises(InvalidInputError, match="observation='counts'"):
                call(shuffle, df)
    assert shuffle.stages() == []
    found = Observation("behind")
    shuffle.durable(plain).observe(found, F.count(F.lit(1)).alias("n")).collect()
    assert found.get == {"n": 10}


@pytest.mark.parametrize("job", [7, b"job", ["job"], ""])
def test_a_job_must_have_a_name(session: SparkSession, root: str, job: Any) -> None:
    """Any other value is refused as bad input, not by an error of Python's."""
    with pytest.raises(InvalidInputError, match=r"job must be 1 to .* letters"):
        DurableShuffle(session, root, job=job)
