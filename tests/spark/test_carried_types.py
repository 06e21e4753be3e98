"""Columns of types that Spark does not hand to Python: only the JVM stores and reads them."""

from collections.abc import Callable

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import InvalidInputError

pytestmark = pytest.mark.spark

COLUMNS = {
    "variant": 'parse_json(concat(\'{"a":\', id, \',"b":[1,"x"]}\'))',
    "variant, sometimes null": "if(id % 3 = 0, null, parse_json(string(id)))",
    "variants in an array": "array(parse_json('1'), null, parse_json('[]'))",
    "variant in a map": "map('k', parse_json('null'), 'l', parse_json('1.5'))",
    "months": "make_ym_interval(int(id), 11)",
    "months in a struct": "named_struct('m', interval '3' month, 'n', id)",
    "interval": "make_interval(int(id), 2, 3, -4, 5, 6, 7.000008)",
    "interval, sometimes null": "if(id % 2 = 0, null, make_interval(0, int(id)))",
    "intervals in an array": "array(make_interval(1), make_interval(0, 0, 0, -1), null)",
    "array of nothing": "array()",
    "map of nothing": "map()",
    "arrays of nothing": "array(array(), array())",
    "fields of one name": "named_struct('a', id, 'a', string(id))",
    "fields of one name, deep": "array(named_struct('A', id, 'a', named_struct('x', 1, 'x', id)))",
}
IN_PYTHON = ("fields of one name", "fields of one name, deep")
"""What Python workers can store, too."""
CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df),
    "repartition": lambda s, df: s.repartition(df, 3, "id"),
    "query": lambda s, df: s.query(df.repartition(3)),
}


def _rows(df: DataFrame) -> list[tuple[object, ...]]:
    """Return the rows with the column `v` as Spark itself shows it."""
    shown = F.to_json(F.struct("v")), F.expr("cast(v AS string)"), F.expr("typeof(v)")
    return sorted(map(tuple, df.select("id", *shown).collect()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("column", COLUMNS)
def test_rows_are_those_of_spark(session: SparkSession, root: str, column: str) -> None:
    """Rows and schema are equal in the run that stores and in a run that reuses."""
    df = session.range(0, 40, 1, 2).selectExpr("id", f"{COLUMNS[column]} AS v")
    wanted = _rows(df)
    for decision in ("computed", "reused"):
        shuffle = DurableShuffle(session, root, job="tests")
        for name, call in CALLS.items():
            stored = call(shuffle, df)
            assert _rows(stored) == wanted, name
            assert stored.schema == df.schema or name == "query"
        assert {stage.action for stage in shuffle.report().stages} == {decision}
        assert shuffle.report().native == ()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("column", COLUMNS)
def test_python_workers_refuse_them_by_name(session: SparkSession, root: str, column: str) -> None:
    """The error says what to do instead; a query leaves such an exchange to Spark."""
    df = session.range(0, 40, 1, 2).selectExpr("id", f"{COLUMNS[column]} AS v")
    shuffle = DurableShuffle(session, root, job="tests", rows_in="python")
    if column in IN_PYTHON:
        for call in CALLS.values():
            assert _rows(call(shuffle, df)) == _rows(df)
        return
    for name in ("checkpoint", "repartition"):
        with pytest.raises(InvalidInputError, match=r"column 'v' of type .* rows_in='auto'"):
            CALLS[name](shuffle, df)
    assert _rows(CALLS["query"](shuffle, df)) == _rows(df)
    assert any("column 'v'" in text for text in shuffle.report().native)
    with pytest.raises(InvalidInputError, match="column 'v'"):
        shuffle.consume(df, consumer="c", process=lambda rows: None)
    assert shuffle.stages() == []


def test_vectors_of_spark_ml(session: SparkSession, root: str) -> None:
    """A user-defined type is stored as what it is inside Spark, and comes back as itself."""
    rows = [(i, Vectors.dense([i, 0.5]) if i % 2 else Vectors.sparse(3, {1: i})) for i in range(9)]
    schema = StructType([StructField("id", LongType()), StructField("v", VectorUDT())])
    df = session.createDataFrame(rows, schema)
    shuffle = DurableShuffle(session, root, job="tests")
    for name, call in CALLS.items():
        stored = call(shuffle, df)
        assert stored.schema == df.schema, name
        assert sorted(stored.collect(), key=lambda row: row.id) == df.collect()
    assert shuffle.report().native == ()
