"""If a captured value differs in every run, it is named, because it alone makes a stage fresh."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs import claims

pytestmark = pytest.mark.spark
SENTENCE = "differs from the last run's stage"


def tagged(session: SparkSession, run_id: str, step: int = 1) -> DataFrame:
    """Rows that do not depend on the run's id, from a function that uses it."""
    if step == 1:

        def tag(x):  # type: ignore[no-untyped-def]
            return x + 1 if run_id else 0
    else:

        def tag(x):  # type: ignore[no-untyped-def]
            return x + 2 if run_id else 0

    return session.range(0, 8, 1, 2).select(F.udf(tag, "long")("id").alias("k"))


def test_value_that_differs_in_every_run_is_named(
    session: SparkSession, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The value is named once on standard error, in the report and by explain; but not in the run
    that sees the first value, not within a run, not if code differs as well, and not after a
    hit."""

    def run(*frames: DataFrame) -> tuple[str, str, str]:
        claims._held.clear()  # the next object is another driver, as in another process
        shuffle = DurableShuffle(session, root, job="tests")
        said = str(shuffle.explain.repartition(frames[0], 2, "k"))
        for df in frames:
            shuffle.repartition(df, 2, "k")
        return said, str(shuffle.report()), capsys.readouterr().err

    for silent in run(tagged(session, "monday"), tagged(session, "noon")):
        assert SENTENCE not in " ".join(silent.split())
    texts = run(tagged(session, "tuesday"), tagged(session, "tuesday"))
    for text in texts:
        plain = " ".join(text.split())
        assert f"only tagged.<locals>.tag.run_id {SENTENCE}" in plain
        assert "keep the function from using it" in plain
    assert " ".join(texts[2].split()).count(SENTENCE) == 1
    for silent in run(tagged(session, "tuesday")):
        assert SENTENCE not in " ".join(silent.split())
    for silent in run(tagged(session, "wednesday", step=2)):
        assert SENTENCE not in " ".join(silent.split())


def test_value_is_named_in_stages_and_queries(
    session: SparkSession, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The map of a Python stage and a piece of a query, with a default argument that differs."""

    def run(now: int) -> str:
        def mapped(batches: Any, at: int = now) -> Any:
            yield from batches if at else ()

        claims._held.clear()  # the next object is another driver, as in another process
        shuffle = DurableShuffle(session, root, job="tests")
        df = session.range(0, 8, 1, 2)
        shuffle.stage(df, map=mapped, keys="id", num_partitions=2, name="mapped")
        moved = df.mapInArrow(mapped, "id long").groupBy("id").count()
        shuffle.query(moved, name="grouped").collect()
        return " ".join(capsys.readouterr().err.split())

    assert SENTENCE not in run(1)
    said = run(2)
    for name in ("mapped", "grouped"):
        assert f"stage '{name}': only test_value_is_named_in_stages_and_queries." in said
    assert f"mapped.at {SENTENCE}" in said
