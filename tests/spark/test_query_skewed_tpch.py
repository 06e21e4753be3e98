"""TPC-H over tables whose foreign keys follow Zipf's law: several tasks share large partitions."""

import pytest
from pyspark.sql import SparkSession
from tpch_checks import STORES_RESULTS, check_query, with_tables

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.tpch.answers import Answers
from durable_shuffle.bench.tpch.data import TpchFiles
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES
from durable_shuffle.bench.tpch.skewed import generate_skewed

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]

DIVIDED = ("q05", "q09")
"""Joins by skewed keys with nothing above that needs the keys together."""
SKEW = "spark.sql.adaptive.skewJoin.skewedPartition"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TpchFiles:
    return generate_skewed(tmp_path_factory.mktemp("tpch"), 0.01)


@pytest.fixture(scope="module")
def large_files(tmp_path_factory: pytest.TempPathFactory) -> TpchFiles:
    return generate_skewed(tmp_path_factory.mktemp("tpch"), 0.05)


@pytest.fixture(scope="module")
def large_answers(large_files: TpchFiles) -> Answers:
    return Answers(large_files)


def shared(durable: DurableShuffle) -> list[str]:
    return [text for text in durable.report().adapted if "because of skew" in text]


def dividing(session: SparkSession, partitions: int, least: str) -> None:
    """Set limits that suit so few rows."""
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    session.conf.set(SKEW + "ThresholdInBytes", least)
    session.conf.set(SKEW + "Factor", "1.5")
    session.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", least)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("query", DIVIDED)
def test_skewed_sample(session: SparkSession, files: TpchFiles, root: str, query: str) -> None:
    """Large partitions are divided; rows are DuckDB's; a second run runs no producer."""
    tpch = with_tables(session, files)
    dividing(tpch, 16, "16KB")
    assert shared(check_query(tpch, root, Answers(files), query))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("divides", [True, False], ids=["divided", "as they come"])
@pytest.mark.parametrize("query", sorted(TPCH_QUERIES))
def test_skewed_all(
    session: SparkSession,
    large_files: TpchFiles,
    large_answers: Answers,
    root: str,
    query: str,
    divides: bool,
) -> None:
    """All queries, with low limits and with Spark's."""
    tpch = with_tables(session, large_files)
    if divides:
        dividing(tpch, 16, "64KB")
    durable = check_query(tpch, root, large_answers, query, STORES_RESULTS)
    if divides and query in DIVIDED:
        assert shared(durable)
    assert divides or not shared(durable)
