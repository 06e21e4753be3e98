"""Arguments of `DurableShuffle` from Spark's configuration; `explain` and `checkpoint` by name."""

from datetime import timedelta

import pytest
from pipelines import until
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle, Settings
from durable_shuffle.errors import IncompatibleError, InvalidInputError
from durable_shuffle.jobs.engine import classic
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
        assert (before.stored, before.stages[0].status) == (False, "absent"), name
        done = getattr(shuffle, name)(*args, **named)
        assert done.count() > 0
        after = explain(*args, **named)
        assert (after.stored, after.stages[0].status) == (True, "stored"), name
        assert str(after).startswith(named.get("name", name) + ("-" if name != "query" else ""))
        assert after.stages[-1].fingerprint == shuffle.report().stages[-1].fingerprint


def test_checkpoint_and_its_older_name_share_stages(session: SparkSession, root: str) -> None:
    """`durable` is `checkpoint`; both work in `df.transform`."""
    shuffle = DurableShuffle(session, root, job="tests")
    df = session.range(20)
    assert df.transform(shuffle.checkpoint).count() == df.transform(shuffle.durable).count() == 20
    assert df.transform(shuffle.repartition, 2, "id").rdd.getNumPartitions() == 2
    assert [stage.action for stage in shuffle.report().stages] == ["computed", "reused", "computed"]


def test_sparks_ui_and_listeners_see_the_stages_name(session: SparkSession, root: str) -> None:
    """As the description of the job that runs the map tasks; the next job has its own again."""
    with DurableShuffle(session, root, job="shown") as shuffle:
        shuffle.repartition(session.range(10), 2, "id", name="by_id")
        # listeners come later
        until(lambda: "by_id" in str(shown_jobs(session)), "Spark heard of the job")
        before = max(shown_jobs(session))
        session.range(10).count()
        until(lambda: shown_jobs(session, before), "Spark heard of the next job")
        assert "by_id" not in str(shown_jobs(session, before))


def shown_jobs(session: SparkSession, behind: int = -1) -> dict[int, str]:
    """Number -> description of the jobs behind a number: what the UI shows, with or without one.

    Spark forgets the oldest of 1,000, so only their numbers tell whether there are new ones.
    """
    jobs = session.sparkContext._jsc.sc().statusStore().jobsList(None)  # the newest first
    found: dict[int, str] = {}
    for n in range(jobs.size()):
        number, text = jobs.apply(n).jobId(), jobs.apply(n).description()
        if number <= behind:
            break
        found[number] = str(text.get()) if text.isDefined() else ""
    return found


def test_python_starts_beside_the_first_plan(
    session: SparkSession,
    root: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once per application, and not if there is nothing to write."""
    caplog.set_level("DEBUG", classic.__name__)  # it says there why it did not start
    label = "durable_shuffle: start Python workers"
    df = session.range(10)
    DurableShuffle(session, root, job="starts").repartition(df, 2, "id")
    monkeypatch.setattr(classic, "_STARTED", set())  # as in a new application
    before = max(shown_jobs(session))
    with DurableShuffle(session, root, job="starts") as shuffle:
        assert shuffle.repartition(df, 2, "id").count() == 10
        assert not classic._STARTED
        assert shuffle.repartition(df, 3, "id").count() == 10
        assert shuffle.repartition(df, 4, "id").count() == 10
    until(lambda: label in shown_jobs(session, before).values(), "Python starts")
    assert list(shown_jobs(session, before).values()).count(label) == 1


def test_explain_starts_no_python(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It plans a stage that is partly stored, and runs nothing."""
    started: list[object] = []
    monkeypatch.setattr(
        classic.ClassicEngine, "start_workers", lambda engine: started.append(engine)
    )
    fails = session.range(9).selectExpr("id", "IF(id = 8, raise_error('no'), 1) AS x")
    shuffle = DurableShuffle(session, root, job="explained")
    with pytest.raises(PySparkException, match="no"):
        shuffle.repartition(fails, 2, "id")
    assert len(started) == 1
    assert shuffle.explain.repartition(fails, 2, "id").stages[0].status == "partial"
    assert len(started) == 1
