"""Compaction when a stage is sealed: the same rows in the same places, now and when reused."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.shuffle.settings import Settings

pytestmark = pytest.mark.spark


def placed(df: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, df.select("*", F.spark_partition_id()).collect()))


def test_stages_are_compacted_on_seal(session: SparkSession, root: str) -> None:
    """Every task reads the compacted segment; a later driver without the setting reuses it."""
    df = session.range(0, 3000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    expected = placed(df.repartition(5, "k"))
    for settings, decision in ((Settings(compact_small_bytes=1 << 20), "fresh"), (None, "reuse")):
        given = {} if settings is None else {"settings": settings}
        shuffle = DurableShuffle(session, root, job="tests", **given)
        back = shuffle.repartition(df, 5, "k")
        assert placed(back) == expected
        (stage,) = shuffle.report().stages
        assert stage.decision == decision
        assert stage.producers_rerun == 0
    compacted = [p for p in Path(root).rglob("*.seg") if "compacted" in p.parts]
    originals = [p for p in Path(root).rglob("*.seg") if "segments" in p.parts]
    assert (len(compacted), len(originals)) == (1, 4)
    for path in originals:
        path.unlink()  # nothing reads them any more
    assert placed(back) == expected
