"""Session variables count by their value, SQL functions by what they compute."""

from collections.abc import Callable

import pytest
from identity_plans import differing, identify
from pyspark.sql import DataFrame, SparkSession

Make = Callable[[SparkSession, int], DataFrame]
pytestmark = pytest.mark.spark


def filtered(session: SparkSession, value: int) -> DataFrame:
    session.sql(f"DECLARE OR REPLACE VARIABLE least BIGINT DEFAULT {value}")
    return session.sql("SELECT id FROM t WHERE id > least")


def computed(session: SparkSession, value: int) -> DataFrame:
    session.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION plus(x BIGINT) RETURNS BIGINT "
        f"COMMENT 'made for {id(session)}' RETURN x + {value}"
    )
    return session.sql("SELECT plus(id) AS x FROM t")


def listed(session: SparkSession, value: int) -> DataFrame:
    session.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION above(x BIGINT) RETURNS TABLE (id BIGINT) "
        f"RETURN SELECT id FROM t WHERE id > x + {value}"
    )
    return session.sql("SELECT * FROM above(3)")


def kept(session: SparkSession, value: int) -> DataFrame:
    session.sql("DROP FUNCTION IF EXISTS plus_for_all")
    session.sql(f"CREATE FUNCTION plus_for_all(x BIGINT) RETURNS BIGINT RETURN x + {value}")
    return session.sql("SELECT plus_for_all(id) AS x FROM t")


@pytest.mark.parametrize("make", [filtered, computed, listed, kept])
def test_what_is_declared_anew(session: SparkSession, table: DataFrame, make: Make) -> None:
    """Declared again, in a session of another run too, a plan is the same; changed, it is not."""
    other = session.newSession()
    for one in (session, other):
        one.read.parquet(*table.inputFiles()).createOrReplaceTempView("t")
    try:
        first, again = make(session, 3), make(other, 3)
        assert differing(first, again) == set()
        assert differing(first, make(other, 4)) == {"plan"}
    finally:
        session.sql("DROP FUNCTION IF EXISTS plus_for_all")


def test_a_variable_that_changes_later(session: SparkSession, table: DataFrame) -> None:
    """A frame keeps the value with which it was made; its rows are those of that value."""
    session.read.parquet(*table.inputFiles()).createOrReplaceTempView("t")
    frame = filtered(session, 3)
    before = identify(frame)
    session.sql("SET VARIABLE least = 5")
    assert identify(frame) == before
    assert min(row.id for row in frame.collect()) == 4
    later = session.sql("SELECT id FROM t WHERE id > least")
    assert differing(frame, later) == {"plan"}
