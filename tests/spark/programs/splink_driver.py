"""Splink, which knows nothing of this library: `splink_driver.py FOLDER PLAIN`.

Finds the persons that occur twice in FOLDER/people. With PLAIN "yes" it first does so without this
library, and afterwards twice inside `transparent()`; else once. Prints one JSON line.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from splink import Linker, SettingsCreator, SparkAPI, block_on
from splink import comparison_library as compare

from durable_shuffle import DurableShuffle

PERSONS = 60
SCHEMA = "unique_id long, first_name string, surname string, dob string, city string"


def people() -> list[tuple[Any, ...]]:
    """Every person twice, the second time with some typing errors."""
    draw = random.Random(7)
    rows: list[tuple[Any, ...]] = []
    for number in range(PERSONS):
        first = draw.choice(["ana", "bob", "cleo", "dan", "eve", "fay", "gus"])
        last = draw.choice(["smith", "jones", "brown", "miller", "davis"])
        born, city = str(draw.randint(1970, 2000)), draw.choice(["rome", "oslo", "bonn"])
        rows.append((2 * number, first, last, born, city))
        typed = first if draw.random() < 0.8 else first + "x"
        rows.append((2 * number + 1, typed, last, born, city if draw.random() < 0.9 else "lima"))
    return rows


def clusters(spark: SparkSession, path: str) -> list[list[Any]]:
    """Return the cluster of each record, as Splink's guide for Spark does it."""
    api = SparkAPI(
        spark_session=spark,
        break_lineage_method="checkpoint",
        num_partitions_on_repartition=2,
        register_udfs_automatically=False,
    )
    settings = SettingsCreator(
        link_type="dedupe_only",
        comparisons=[
            compare.LevenshteinAtThresholds("first_name", 1),
            compare.ExactMatch("surname"),
            compare.ExactMatch("city"),
        ],
        blocking_rules_to_generate_predictions=[block_on("dob"), block_on("surname", "city")],
    )
    linker = Linker(api.register(spark.read.parquet(path)), settings)
    linker.training.estimate_parameters_using_expectation_maximisation(block_on("dob"))
    pairs = linker.inference.predict(threshold_match_probability=0.2)
    found = linker.clustering.cluster_pairwise_predictions_at_threshold(
        pairs, threshold_match_probability=0.5
    )
    rows = found.as_spark_dataframe().select("cluster_id", "unique_id").collect()
    return sorted([row.cluster_id, row.unique_id] for row in rows)


def main(folder: str, plain: str) -> None:
    """Link the records."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
    spark.sparkContext.setCheckpointDir(f"{folder}/checkpoints")
    path = f"{folder}/people"
    if not Path(path, "_SUCCESS").exists():
        spark.createDataFrame(people(), SCHEMA).coalesce(1).write.parquet(path)
    answer: dict[str, Any] = {}
    if plain == "yes":
        answer["plain"] = clusters(spark, path)
    answer["durable"], answer["reports"] = [], []
    for _ in range(2 if plain == "yes" else 1):
        with DurableShuffle(spark, f"{folder}/store", job="persons") as shuffle:
            with shuffle.transparent():
                answer["durable"].append(clusters(spark, path))
            answer["reports"].append(shuffle.report().to_dict())
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
