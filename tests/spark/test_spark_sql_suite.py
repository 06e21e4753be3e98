"""Spark's own SQL test files, commands and all, end the same inside `transparent()`, twice."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_sql_suite import Suite, archive, names

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]

SAMPLE = {
    "group-by": 7,
    "having": 2,
    "pivot": 3,
    "grouping_set": 2,
    "natural-join": 2,
    "except-all": 2,
    "count": 2,
    "cte": 2,
    "order-by-ordinal": 2,
    "postgreSQL/window_part1": 4,
    "postgreSQL/aggregates_part1": 3,
    "subquery/in-subquery/in-group-by": 2,
    "subquery/exists-subquery/exists-aggregate": 2,
    "subquery/scalar-subquery/scalar-subquery-select": 2,
    "mode": 2,
    "listagg": 2,
    "variant/named-function-arguments": 1,
}
"""File -> how many of its statements with shuffles always run; the rest run in `make soak`."""
PARTS = 12


@pytest.fixture
def suite(spark: SparkSession, root: str, tmp_path: Path) -> Suite:
    return Suite(spark, root, tmp_path)


def test_a_sample_of_the_files(suite: Suite) -> None:
    """About 40 statements with shuffles; a second driver reuses what the first one stored."""
    listed = set(names(suite.jar))
    for again in (False, True):
        for name, most in SAMPLE.items():
            if name in listed:
                suite.run(name, most=most)
        print(again, suite.tally)
        assert not suite.different, "\n\n".join(suite.different)
    assert suite.tally["storing"] >= 2 * 30
    assert suite.tally["reused"] >= suite.tally["computed"] / 2, "little was recognised"


@pytest.mark.soak
@pytest.mark.parametrize("part", [f"part{i}" for i in range(PARTS)])
def test_all_files(suite: Suite, part: str) -> None:
    """Every file, in parts; a second driver reuses what the first one stored."""
    mine = names(archive())[int(part.removeprefix("part")) :: PARTS]
    for _ in range(2):
        for name in mine:
            suite.run(name)
    print(suite.tally)
    assert not suite.different, "\n\n".join(suite.different)
