"""TPC-DS, compared with Spark: many joins, unions, subqueries, roll-ups and windows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.tpcds.data import create_views, generate
from durable_shuffle.bench.tpcds.queries import TPCDS_NAMES, tpcds_query
from durable_shuffle.bench.tpch.answers import differing_rows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]

SAMPLE = ("q3", "q33", "q44", "q93")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("tpcds"), 0.01)


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("tpcds"), 0.1)


def check_query(session: SparkSession, root: str, name: str) -> None:
    """Rows are Spark's own, and the same query again runs no producer."""
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.conf.set("spark.sql.ansi.enabled", "false")  # q90 divides by 0 where there are few rows
    expected = session.sql(tpcds_query(name)).collect()
    durable = DurableShuffle(session, root, job="tests")
    rows = durable.query(session.sql(tpcds_query(name))).collect()
    assert differing_rows(expected, rows) == 0
    again = DurableShuffle(session, root, job="tests")
    assert again.query(session.sql(tpcds_query(name))).collect() == rows
    assert again.report().total()["map_tasks_run"] == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SAMPLE)
def test_tpcds_sample(session: SparkSession, folder: Path, root: str, name: str) -> None:
    """With sort-merge joins, so that there are many cuts."""
    create_views(session, folder)
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    check_query(session, root, name)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("threshold", ["-1", "10485760"])
@pytest.mark.parametrize("name", TPCDS_NAMES)
def test_tpcds_all(
    session: SparkSession, large_folder: Path, root: str, name: str, threshold: str
) -> None:
    """All 99 queries, with and without broadcast joins."""
    create_views(session, large_folder)
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)
    check_query(session, root, name)


@pytest.fixture
def own(session: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own."""
    session.sql(f"CREATE DATABASE own LOCATION '{tmp_path / 'own'}'")
    yield "own"
    session.sql("DROP DATABASE own CASCADE")


def check_statements(session: SparkSession, root: str, name: str) -> None:
    """A new table and an overwritten one hold Spark's own rows; the next driver stores nothing."""
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.conf.set("spark.sql.ansi.enabled", "false")
    query = tpcds_query(name).rstrip().removesuffix(";")
    columns = ", ".join(f"c{i}" for i in range(len(session.sql(query).columns)))
    rows = f"SELECT * FROM ({query}\n) AS q ({columns})"  # q34 ends in a comment
    plan = session.sql(rows)._jdf.queryExecution().executedPlan().toString()
    shuffled = re.search(r"(?<!Broadcast)Exchange ", plan) is not None  # not in q84: one partition
    session.sql(f"CREATE TABLE own.plain USING parquet AS {rows}")
    session.sql("CREATE TABLE own.again LIKE own.plain")
    expected = session.table("own.plain").collect()
    stored = []
    for driver in range(2):
        with DurableShuffle(session, root, job="statements") as durable, durable.transparent():
            session.sql(f"CREATE TABLE own.t{driver} USING parquet AS {rows}")
            session.sql(f"INSERT OVERWRITE own.again {rows}")
        for table in (f"own.t{driver}", "own.again"):
            assert differing_rows(expected, session.table(table).collect()) == 0
        stored.append(durable.report().total()["map_tasks_run"])
    assert (stored[0] > 0) is shuffled
    assert stored[1] == 0


@pytest.mark.soak
def test_statements_over_one_query(
    session: SparkSession, folder: Path, root: str, own: str
) -> None:
    """CREATE TABLE AS SELECT and INSERT OVERWRITE, as dbt and schedulers write them."""
    create_views(session, folder)
    check_statements(session, root, "q33")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TPCDS_NAMES)
def test_statements_over_all_queries(
    session: SparkSession, folder: Path, root: str, own: str, name: str
) -> None:
    """All 99 queries as statements that write."""
    create_views(session, folder)
    check_statements(session, root, name)
