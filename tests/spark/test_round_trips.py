"""A driver waits for few requests one after the other: over a network each costs a round trip."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from round_trips import counted_rounds

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark


def test_rounds_of_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing a new stage and finding a stored one take so many rounds, whatever is in flight."""
    found = []
    for _ in range(2):
        with DurableShuffle(spark, str(tmp_path), job="rounds") as shuffle:
            df = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 AS k")
            shuffle.checkpoint(df, name="warm")
            with counted_rounds(monkeypatch) as rounds:
                shuffle.checkpoint(df.where("k > 1"), name="tiny")
            assert rounds.requests
            found.append(rounds)
    stored, again = found
    # DESCRIBE, STAGE; behind the map side: the job's log beside the index, the floors, then SEAL
    assert stored.ended <= 5, stored.requests
    # DESCRIBE beside the log, STAGE; then the floors beside the log again and the listings
    assert again.ended <= 3, again.requests
