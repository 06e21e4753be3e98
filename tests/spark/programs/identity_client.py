"""The cases of the identity matrix on Spark Connect: `identity_client.py FOLDER`; one JSON line."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(folder: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
    from identity_matrix import CASES, World, judge

    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    found = {}
    for case in CASES:
        place = Path(folder, f"{case.row} {case.what}".replace("/", "-"))
        place.mkdir()
        world = World(spark, place)
        found[f"{case.row}: {case.what}"] = judge(world, case, str(place), connect=True)
    print(json.dumps(found), flush=True)
    spark.stop()


main(*sys.argv[1:])
