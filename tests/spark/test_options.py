"""Arguments of `DurableShuffle` from Spark's configuration; `explain` and `checkpoint` by name."""

from datetime import timedelta

import pytest
from pipelines import until
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle, Settings
from durable_shuffle.errors import IncompatibleError, InvalidInputError
from durable_shuffle.jobs.options import PREFIX, configured, retention_from, settings_from

pytestmark = pytest.mark.spark


@pytest.fixture
def configure(session: SparkSession, root: str) -> SparkSession:
    """A session whose configuration names the storage and the job."""
    session.conf.set(PREFIX + "url", root)
    session.conf.set(PREFIX + "job", "nightly")
    return session


def test_spark_submit_is_enough(configure: SparkSession, root: str) -> None:
    """Every argument can come from the configuration; one of the call counts before it."""
    configure.conf.set(PREFIX + "reuse", "require")
    configure.conf.set(PREFIX + "settings.writerMemoryBytes", "1048576")
    with DurableShuffle(configure) as shuffle:
        assert shuffle.url.endswith(root)
        with pytest.raises(IncompatibleError):
            shuffle.checkpoint(configure.range(3))
    with DurableShuffle(configure, reuse="auto") as shuffle:
        assert shuffle.checkpoint(configure.range(3)).count() == 3
        assert shuffle.report().job == "nightly"


def test_a_key_that_sets_nothing_is_refused(configure: SparkSession) -> None:
    """A misspelled key is no silent default; neither is a job that nobody names."""
    configure.conf.set(PREFIX + "onconflict", "fail")
    with pytest.raises(InvalidInputError, match="onconflict is not a setting; the settings are"):
        DurableShuffle(configure)
    configure.conf.unset(PREFIX + "onconflict")
    configure.conf.unset(PREFIX + "job")
    with pytest.raises(InvalidInputError, match="no job: pass DurableShuffle"):
        DurableShuffle(configure)


def test_values_are_read_as_their_types(configure: SparkSession) -> None:
    """Numbers, booleans and times; anything else is refused with the key."""
    configure.conf.set(PREFIX + "settings.checkOffsets", "false")
    configure.conf.set(PREFIX + "settings.ackSeconds", "2.5")
    assert settings_from(configured(configure)) == Settings(check_offsets=False, ack_seconds=2.5)
    for text, value in {"7 d": timedelta(7), "90min": timedelta(minutes=90)}.items():
        assert retention_from(text) == value
    assert retention_from("until_released") == "until_released"
    with pytest.raises(InvalidInputError, match="found='a week'"):
        retention_from("a week")
    with pytest.raises(InvalidInputError, match="ackRows must be of type int"):
        settings_from({"settings.ack_rows": "many"})


def test_explain_has_a_method_per_call(session: SparkSession, root: str) -> None:
    """Each explains what its call then does, with that call's arguments."""
    df = session.range(20).selectExpr("id", "id % 3 as k")
    shuffle = DurableShuffle(session, root, job="tests")
    stage = {"keys": "k", "num_partitions": 2}
    asked = {
        "checkpoint": ((df,), {}),
        "repartition": ((df, 2, "k"), {"name": "by_k"}),
        "stage": ((df,), stage),
        "query": ((df.groupBy("k").count(),), {}),
    }
    for name, (args, named) in asked.items():
        explain = getattr(shuffle.explain, name)
        before = explain(*args, **named)
        assert (before.hit, before.stages[0].state) == (False, "missing"), name
        done = getattr(shuffle, name)(*args, **named)
        assert done.count() > 0
        after = explain(*args, **named)
        assert (after.hit, after.stages[0].state) == (True, "committed"), name
        assert str(after).startswith(named.get("name", name) + ("-" if name != "query" else ""))
        assert after.stages[-1].fingerprint == shuffle.report().stages[-1].fingerprint


def test_checkpoint_and_its_older_name_share_stages(session: SparkSession, root: str) -> None:
    """`durable` is `checkpoint`; both work in `df.transform`."""
    shuffle = DurableShuffle(session, root, job="tests")
    df = session.range(20)
    assert df.transform(shuffle.checkpoint).count() == df.transform(shuffle.durable).count() == 20
    assert df.transform(shuffle.repartition, 2, "id").rdd.getNumPartitions() == 2
    assert [stage.decision for stage in shuffle.report().stages] == ["fresh", "reuse", "fresh"]


def test_sparks_ui_and_listeners_see_the_stages_name(session: SparkSession, root: str) -> None:
    """As the description of the job that runs the map tasks; the next job has its own again."""
    jobs = session.sparkContext._jsc.sc().statusStore()  # what the UI shows, with or without one

    def newest() -> str:
        description = jobs.jobsList(None).head().description()
        return str(description.get()) if description.isDefined() else ""

    with DurableShuffle(session, root, job="shown") as shuffle:
        shuffle.repartition(session.range(10), 2, "id", name="by_id")
        until(lambda: "by_id" in newest(), "Spark heard of the job")  # listeners come later
        session.range(10).count()
        until(lambda: "by_id" not in newest(), "Spark heard of the next job")
