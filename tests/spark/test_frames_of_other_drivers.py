"""A frame over a stored stage is known to every driver of its job in the same application."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark


def below(shuffle: DurableShuffle, table: DataFrame) -> DataFrame:
    return shuffle.checkpoint(table.where("id > 3"), name="below")


@pytest.mark.parametrize("call", ["checkpoint", "query"])
def test_stage_of_another_driver_of_the_job(
    session: SparkSession, table: DataFrame, root: str, call: str
) -> None:
    """One block per cell: a stage on top of an earlier block's stage is found by the next run."""
    decisions = []
    for _ in range(2):
        with DurableShuffle(session, root, job="cells") as first:
            frame = below(first, table)
        with DurableShuffle(session, root, job="cells") as second:
            top = frame.groupBy("k").count()
            rows = getattr(second, call)(top, name="top").collect()
            decisions.append([stage.action for stage in second.report().stages])
            assert sorted(rows) == sorted(top.collect())
    assert decisions == [["computed"], ["reused"]]


def test_stage_of_another_job_is_not_known(
    session: SparkSession, table: DataFrame, root: str, tmp_path: Path
) -> None:
    """Nothing tells this job when the other one computes its stage again."""
    with DurableShuffle(session, root, job="one") as first:
        frame = below(first, table)
    for where, job in ((root, "two"), (str(tmp_path / "other"), "one")):
        with DurableShuffle(session, where, job=job) as second:
            (stage,) = second.explain.checkpoint(frame.groupBy("k").count()).stages
            assert "cannot be recognised" in stage.why
