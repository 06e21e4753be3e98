"""Spark Connect: a real server and client from the pip package, in a separate process.

The program `connect_client.py` runs once and reports what it saw; each test checks one part.
"""

from pathlib import Path
from typing import Any

import pytest
from identity_matrix import connect_cases
from pyspark.sql import SparkSession

from durable_shuffle.jobs.engine.connect import ConnectEngine
from durable_shuffle.jobs.streaming.register import can_register

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROWS = [[i % 7, i] for i in range(40)]


STEP = 10
"""From case to case of the identity matrix that always run."""


def what_a_client_sees(programs: Any, folder: Path, step: int) -> dict[str, Any]:
    pytest.importorskip("grpc")
    runs = folder / "runs"
    runs.mkdir()
    answer: dict[str, Any] = programs.run("connect_client", folder, runs, step)
    return {**answer, "folder": folder}


@pytest.fixture(scope="module")
def seen(programs: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client saw, and the folder in which it worked."""
    return what_a_client_sees(programs, tmp_path_factory.mktemp("connect"), STEP)


def names_of_cases(step: int) -> list[str]:
    return [f"{case.row}: {case.what}" for case in connect_cases(step)]


def test_rows_stand_where_spark_puts_them(seen: dict[str, Any]) -> None:
    """Rows are in the same partitions as with Spark's own repartition, and names are kept."""
    stages = seen["stages"]
    assert stages["stored"] == stages["native"]
    assert sorted(row[:2] for row in stages["stored"]) == sorted(ROWS)
    assert stages["columns"] == ["k", "v"]
    assert stages["groups"] == [[k, len(range(k, 40, 7))] for k in range(7)]


def test_version_reuses_and_reads_no_input(seen: dict[str, Any]) -> None:
    """A second driver with the same version runs no producer; the user's function saw no row."""
    stages = seen["stages"]
    assert stages["reused"] == stages["stored"]
    (first,), (second,) = (report["stages"] for report in stages["reports"])
    assert (first["action"], first["map_tasks_run"], first["map_tasks"]) == ("computed", 3, 3)
    assert (second["action"], second["map_tasks_run"]) == ("reused", 0)
    assert (second["map_tasks_reused"], second["map_tasks_rerun"]) == (3, 0)
    after_first, after_second = stages["runs"]
    assert set(after_first) == {"0", "1", "2"}
    assert after_second == after_first
    assert "driver no. 2" in stages["shown"]


def test_workers_live_on(seen: dict[str, Any]) -> None:
    """No job of ours ends a Python worker: a new one takes a second to import what it needs."""
    assert seen["workers"] == [2, 2]


def test_explain_says_hit_miss_and_why(seen: dict[str, Any]) -> None:
    """`explain` knows a stored stage with and without a version, and says why one is missing."""
    missed, why_missed, hit, why_hit = seen["stages"]["explained"]
    assert (missed, hit) == (False, True)
    assert "no stage named 'repartition'" in why_missed
    assert why_hit == "stored under the same fingerprint"
    without = seen["stages"]["without_version"]
    assert without == "stored under the same fingerprint"


def test_plans_that_differ_are_told_apart(seen: dict[str, Any]) -> None:
    """With one version for all plans, each plan gives Spark's rows, and equal plans are reused."""
    told = seen["told"]
    assert told["wrong"] == []
    first, both = told["decisions"]
    assert set(first) == {"computed"}
    assert set(both[len(first) :]) == {"reused"}
    assert len(both) == 2 * len(first)
    assert told["above"] == ["computed", "reused"]
    assert told["view over other rows"].startswith(
        "InvalidInputError: checkpoint: version= vouches"
    )


def test_identity_matrix(seen: dict[str, Any]) -> None:
    """Rows of the page in both directions: a relevant change misses, an irrelevant one hits."""
    assert list(seen["matrix"]) == names_of_cases(STEP)
    assert {name: wrong for name, wrong in seen["matrix"].items() if wrong} == {}


@pytest.mark.soak
def test_whole_identity_matrix(programs: Any, tmp_path: Path) -> None:
    """Each row of the page."""
    found = what_a_client_sees(programs, tmp_path, 1)["matrix"]
    assert list(found) == names_of_cases(1)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_what_the_server_names_is_recognised(seen: dict[str, Any]) -> None:
    """Files, tables and views count as they are now; all else is unresolved by its name."""
    assert len(seen["inputs"]) >= 50
    assert {step: wrong for step, wrong in seen["inputs"].items() if wrong} == {}


def test_durable_keeps_order_and_session(seen: dict[str, Any]) -> None:
    """Rows come back in order, and the session's settings do not change."""
    assert seen["stages"]["kept"] == list(range(40))
    assert seen["stages"]["adaptive"] == "true"


def test_rows_without_columns_are_rows(seen: dict[str, Any]) -> None:
    """Every call keeps their number, fresh and reused."""
    assert seen["stages"]["no_columns"] == [40, 40, 40, 120]
    assert seen["stages"]["local"] == ["Row(k=1)", "Row(k=1)", "Row(k=2)", "Row(k=None)"]


def test_observed_frames_are_refused(seen: dict[str, Any]) -> None:
    """The frame is named, also below another operator."""
    assert seen["stages"]["observed"].startswith("InvalidInputError: df.observe() would never")
    assert "observation='o'" in seen["stages"]["observed"]


def test_consume(seen: dict[str, Any]) -> None:
    """Every row is published once; a user's error is raised unchanged; and other code under the
    same name is refused."""
    stages = seen["stages"]
    assert stages["consumed"] == [[v, 2 * v] for v in range(40)]
    (report,) = stages["consumer"]
    assert (report["tasks_run"], report["records_delivered"], report["retries"]) == (4, 40, 0)
    assert "ZeroDivisionError" in stages["user_error"]
    assert stages["other_consumer"].startswith("IncompatibleError: ")


def test_python_stages(seen: dict[str, Any]) -> None:
    """Python map and reduce, chained, and recognised by version; RDDs need classic Spark."""
    python = seen["python"]
    sums = [[k, sum(range(k, 40, 7))] for k in range(7)]
    assert python["sums"] == sums
    assert python["above"] == sums
    assert python["decisions"] == ["computed", "computed", "reused"]
    assert python["objects"].startswith("InvalidInputError: an RDD of (key, value) pairs is needed")


def test_whole_queries_are_refused(seen: dict[str, Any]) -> None:
    """One sentence says why, and what to use instead."""
    for call in ("query", "transparent"):
        text = seen["python"][call]
        assert text.startswith(f"InvalidInputError: {call}() needs")
        assert "use repartition() or stage() there" in text
        assert ". " not in text


def test_release_and_fencing(seen: dict[str, Any]) -> None:
    """The newest driver lists and releases stages; the older one is fenced."""
    stages = seen["stages"]
    assert stages["names"] == ["repartition", "kept"]
    assert stages["left"] == ["repartition"]
    assert len(stages["freed"]) == 1
    again, unknown = stages["after_release"]
    assert again == "none"
    assert unknown.startswith("NotFoundError: job='tests' never had a stage named 'nothing'")
    assert stages["freed"][0] > 0
    assert stages["fenced"].startswith("FencedError: another driver took over job 'tests'")


def test_bad_input(seen: dict[str, Any]) -> None:
    """Wrong calls are refused as on classic Spark."""
    stages = seen["stages"]
    assert stages["bad_column"].startswith(
        "InvalidInputError: key column not usable: asked for nope"
    )
    assert stages["bad_n"].startswith("InvalidInputError: partition count must be from 1")
    assert "'m' of type map<int,int> cannot be a key" in stages["map_key"]
    assert stages["url"].startswith("InvalidInputError: no url")


def test_remote_storage_keeps_the_contract(seen: dict[str, Any]) -> None:
    """Control objects that tasks write and read: one winner, typed errors, exact ranges."""
    remote = seen["remote"]
    assert remote["created"] == "Created()"
    assert remote["exists"] == "Exists(existing=b'first')"
    assert remote["read"] == "first"
    assert remote["missing"].startswith("NotFoundError")
    assert "c/gone" in remote["missing"]
    assert remote["short"].startswith("CorruptDataError")
    assert remote["bad_key"].startswith("InvalidInputError")
    assert remote["put_twice"].startswith("ConflictError")
    assert (remote["whole"], remote["range"]) == (True, True)
    assert remote["ranges"] == ["090a0b", b"fi".hex()]
    assert remote["listed"] == [["c/data", 10240], ["c/slot", 5]]
    assert (remote["after_delete"], remote["nothing"]) == (["c/data"], [])


def test_client_that_does_not_share_the_root_works_through_tasks(seen: dict[str, Any]) -> None:
    """Control objects are written where the executors are, and the check leaves no files."""
    host = seen["other_host"]
    assert host["ways"] == ["RemoteStorage", "LocalStorage"]
    assert host["at_executors"] == "x"
    assert host["at_client"] == []
    assert host["left"] == ["tests/log/0000000000"]


def test_data_is_stored_once(seen: dict[str, Any]) -> None:
    """There is one segment per producer in the job: a reuse wrote none."""
    folder: Path = seen["folder"]
    segments = list((folder / "stages").glob("tests/repartition-*/segments/*/*.seg"))
    assert len(segments) == 3


def test_a_pipeline_does_not_run_here(seen: dict[str, Any]) -> None:
    """The error says what to use instead."""
    assert "no job groups" in seen["pipeline"]
    assert "use a session with a SparkContext, or local processes" in seen["pipeline"]


def test_streams_and_tables_of_the_data_source(seen: dict[str, Any]) -> None:
    """One stage is written and read by streams, and read as a table; limits and refusals work."""
    streams = seen["streams"]
    if not can_register():
        pytest.skip("the data source came with PySpark 4.2")
    assert streams["delivered"] == streams["stored"] == list(range(100))
    assert streams["steps"] >= 3, "at most 40 rows in each"
    assert streams["table"] == 10
    assert "did you mean 'columns'" in streams["misspelled"]


def test_a_server_with_other_cores_cuts_other_splits(session: SparkSession, tmp_path: Path) -> None:
    """Two servers may cut the same files into as many producers, in other places. Only the default
    parallelism tells them apart, so it is in the digest."""
    session.range(0, 100, 1, 4).write.parquet(str(tmp_path / "t"))
    digests = []
    for cores in ("2", "5", "2"):
        session.conf.set("spark.sql.leafNodeDefaultParallelism", cores)
        engine, df = ConnectEngine(session), session.read.parquet(str(tmp_path / "t"))
        planned = engine.plan(df, (), None, engine.planning_settings(), large_rows=False)
        assert planned.producers > 0
        digests.append(planned.splits)
    assert digests[0] == digests[2] != digests[1]
