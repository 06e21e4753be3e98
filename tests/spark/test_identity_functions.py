"""Identity of the code that plans call, and inputs that another run cannot recognise."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from identity_plans import differing, identify, write_table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk

pytestmark = pytest.mark.spark


def shifted(amount: int) -> Callable[[int], int]:
    """A function with a closure."""
    return lambda x: x + amount


def test_python_functions_count(table: DataFrame) -> None:
    """Body and closure of plain, pandas and Arrow functions count, as component "functions"."""

    def plain(function: Callable[[int], int]) -> DataFrame:
        return table.select(F.udf(function, "long")("id").alias("x"))

    assert differing(plain(shifted(1)), plain(shifted(1))) == set()
    assert differing(plain(shifted(1)), plain(shifted(2))) == {"functions"}
    assert differing(plain(lambda x: x + 1), plain(lambda x: x - 1)) == {"functions"}

    def arrow(skip: int) -> DataFrame:
        def work(batches: Any) -> Any:
            for batch in batches:
                yield batch.slice(skip)

        return table.mapInArrow(work, table.schema)

    assert differing(arrow(1), arrow(1)) == set()
    assert differing(arrow(1), arrow(2)) == {"functions"}
    swapped = [
        table.select(F.udf(f, "long")("id").alias("x"), F.udf(g, "long")("id").alias("y"))
        for f, g in ((shifted(1), shifted(2)), (shifted(2), shifted(1)))
    ]
    assert differing(*swapped) == {"functions"}


def test_broadcast_in_a_function_counts(spark: SparkSession, table: DataFrame) -> None:
    """A broadcast variable counts by its value, not by its id."""

    def use(value: int) -> DataFrame:
        held = spark.sparkContext.broadcast([value])
        return table.select(F.udf(lambda x: x + held.value[0], "long")("id").alias("x"))

    assert differing(use(1), use(1)) == set()
    assert differing(use(1), use(2)) == {"functions"}


def test_environment_of_workers_counts(spark: SparkSession, table: DataFrame) -> None:
    """A variable that Spark sends to workers is part of a function's identity."""
    environment = spark.sparkContext.environment

    def use(value: str) -> DataFrame:
        environment["RATE"] = value
        try:
            return table.select(F.udf(shifted(1), "long")("id").alias("x"))
        finally:
            del environment["RATE"]

    assert differing(use("1"), use("1")) == set()
    assert differing(use("1"), use("2")) == {"functions"}


def test_jars_that_are_not_sparks_count(spark: SparkSession, tmp_path: Path) -> None:
    """Jars count by name and size, in any folder; Spark's own jars do not count."""
    jvm: Any = spark.sparkContext._jvm
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("commons-lang3-*.jar")

    def tokens(folder: str, name: str, comment: bytes) -> list[str]:
        path = tmp_path / folder / name
        path.parent.mkdir()
        shutil.copy(jar, path)
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = comment
        urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, 1)
        urls[0] = jvm.java.io.File(str(path)).toURI().toURL()
        with_jar = jvm.java.net.URLClassLoader(urls, None)
        made = with_jar.loadClass("org.apache.commons.lang3.mutable.MutableObject")
        walk = CatalystWalk(Jvm(spark.sparkContext))
        walk.origin(made.newInstance())
        return walk.tokens

    first = tokens("a", "user.jar", b"1")
    assert len(first) == 1
    assert first == tokens("b", "user.jar", b"2")
    assert first != tokens("c", "user.jar", b"11")
    assert first != tokens("d", "other.jar", b"1")
    own = CatalystWalk(Jvm(spark.sparkContext))
    own.origin(spark._jsparkSession)
    assert own.tokens == []


@pytest.mark.parametrize("expression", ["current_timestamp()", "now()", "current_date()"])
def test_current_time_is_unresolved(table: DataFrame, expression: str) -> None:
    """A plan that asks for the time has a different meaning in every run."""
    (reason,) = identify(table.selectExpr("id", f"{expression} as t")).unresolved
    assert "another" in reason
    nested = table.filter(f"id in (select 1 where {expression} is not null)")
    assert identify(nested).unresolved


def test_unknown_source_is_named(session: SparkSession, tmp_path: Path) -> None:
    """A data source without files is named as unresolved, also inside a join."""
    DataSource = pytest.importorskip("pyspark.sql.datasource").DataSource

    class Generated(DataSource):
        """A source without files."""

        @classmethod
        def name(cls) -> str:
            return "identity_generated"

        def schema(self) -> str:
            return "id long"

        def reader(self, schema: Any) -> Any:
            raise NotImplementedError

    session.dataSource.register(Generated)
    source = session.read.format("identity_generated").load()
    (reason,) = identify(source).unresolved
    assert "identity_generated" in reason
    files = session.read.parquet(write_table(tmp_path / "t"))
    assert identify(files.join(source, "id")).unresolved == (reason,)


def test_unpicklable_variable_of_a_function_is_named(table: DataFrame) -> None:
    """If a function's variable cannot be recognised, the message names the variable."""

    class Odd:
        def __init__(self) -> None:
            self.refuse = False

        def __reduce__(self) -> Any:
            if self.refuse:
                raise TypeError("no second time")
            return (_odd, (Odd,))

    odd = Odd()
    df = table.select(F.udf(lambda x: x + len(str(odd)), "long")("id"))
    (reason,) = identify(df).unresolved
    assert "odd" in reason
    assert "no second time" in reason


def _odd(kind: Any) -> Any:
    made = kind()
    made.refuse = True
    return made
