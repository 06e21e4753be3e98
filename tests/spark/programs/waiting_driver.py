"""A driver that claims a job, waits for a line, then requests a stage: `waiting_driver.py ROOT`.

Prints two JSON lines: its generation once it has claimed, and the outcome of the stage.
"""

import json
import sys

from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle, DurableShuffleError


def main(root: str) -> None:
    """Claim, wait, write."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    shuffle = DurableShuffle(spark, root, job="tests")
    print(json.dumps({"generation": shuffle.generation}), flush=True)
    sys.stdin.readline()
    try:
        shuffle.repartition(spark.range(0, 6, 1, 2), 2, "id")
    except DurableShuffleError as e:
        answer = {"kind": e.kind, "message": str(e)}
    else:
        answer = {"kind": "none", "message": ""}
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
