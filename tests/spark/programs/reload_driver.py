"""A driver whose module is edited and reloaded during the session, as in a notebook.

Arguments: the module's folder, a root, and "edits", "fresh" or "ships". Prints one JSON line: the
rows of each way to run the module's function.
"""

import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import IncompatibleError


def ways(spark: SparkSession, shuffle: DurableShuffle) -> dict[str, Callable[[], list[int]]]:
    """Name -> a way in which the module's functions produce stored rows."""
    import edited

    numbers = spark.range(0, 4, 1, 2)
    plain = numbers.select(F.udf(edited.shifted, "long")("id").alias("y"))
    pandas = numbers.select(F.pandas_udf(edited.shifted, "long")("id").alias("y"))

    def through_module(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = [edited.shifted(value) for value in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"y": values})

    arrow = numbers.mapInArrow(through_module, "y long")
    grouped = numbers.groupBy("id").applyInPandas(edited.of_group, "y long")
    pairs = spark.sparkContext.parallelize(range(4), 2).map(edited.pair)

    def rows(df: DataFrame) -> list[int]:
        return sorted(row[0] for row in df.collect())

    return {
        "durable, UDF": lambda: rows(shuffle.durable(plain)),
        "durable, rate": lambda: rows(
            shuffle.durable(numbers.select(F.udf(edited.rated, "long")("id").alias("y")))
        ),
        "durable, mapInArrow": lambda: rows(shuffle.durable(arrow)),
        "durable, applyInPandas": lambda: rows(shuffle.durable(grouped)),
        "repartition, pandas UDF": lambda: rows(shuffle.repartition(pandas, 2, "y")),
        "query": lambda: rows(shuffle.query(plain.groupBy("y").count().select("y"))),
        "stage, map": lambda: rows(
            shuffle.stage(
                numbers,
                map=through_module,
                keys="y",
                num_partitions=2,
                map_schema="y long",
                name="m",
            )
        ),
        "stage, reduce": lambda: rows(
            shuffle.stage(
                numbers,
                keys="id",
                num_partitions=2,
                reduce=through_module,
                schema="y long",
                name="r",
            )
        ),
        "objects": lambda: sorted(
            pair[1] for pair in shuffle.stage_objects(pairs, 2, name="o").collect()
        ),
        "plain": lambda: rows(plain),
        "plain, RDD": lambda: sorted(pair[1] for pair in pairs.collect()),
    }


def outcome(way: Callable[[], list[int]]) -> Any:
    """Return rows or the refusal; a reducer runs in the user's job, so Spark words its error."""
    try:
        return way()
    except IncompatibleError as error:
        return f"IncompatibleError: {error}"
    except PythonException as error:
        return str(error).rpartition(f"{IncompatibleError.__module__}.")[2]


def main(folder: str, root: str, mode: str) -> None:
    """Run all ways; "edits" runs them with the old module, edits it, and runs them again."""
    sys.path.insert(0, folder)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    other = tempfile.mkdtemp()
    if mode == "ships":  # the workers find another file under the module's name
        shutil.copy(Path(folder, "edited.py"), other)
        shutil.copy(Path(folder, "rate.json"), other)
        with Path(other, "edited.py").open("a") as file:
            file.write("# another build\n")
        builder = builder.config("spark.executorEnv.PYTHONPATH", other)
    else:
        builder = builder.config("spark.executorEnv.PYTHONPATH", folder)
    spark = builder.getOrCreate()
    shuffle = DurableShuffle(spark, root, job="tests", version="1")
    found = {name: outcome(way) for name, way in ways(spark, shuffle).items()}
    if mode == "edits":
        import edited

        module = Path(folder, "edited.py")
        module.write_text(module.read_text().replace("+ 1\n", "+ 1000\n"))
        importlib.reload(edited)
        found = {name: outcome(way) for name, way in ways(spark, shuffle).items()}
        Path(folder, "rate.json").write_text("7")  # the module's file stays as it is
        importlib.reload(edited)
        found["rate anew"] = outcome(ways(spark, shuffle)["durable, rate"])
    runs = [(s.name, s.action, s.why) for s in shuffle.report().stages]
    print(json.dumps({"rows": found, "runs": runs}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
