"""Overwrites Delta or Iceberg tables by what they hold: `overwrites_driver.py FOLDER JARS FORMAT`.

The JSON that it prints has, for each case, what differs from plain Spark; "" if nothing does.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tables_driver import session

SUPPORT = Path(__file__).parents[2] / "support"


def main() -> None:
    """Run every case of the format."""
    sys.path.insert(0, str(SUPPORT))
    from overwrites import OF_TABLES, outcomes

    folder, kind = Path(sys.argv[1]), sys.argv[3]
    spark = session(SparkSession.builder.master("local[2]"), folder, sys.argv[2])
    place = {"delta": "", "iceberg": "ice.db."}[kind]
    cases = [(way, mode) for way in OF_TABLES for mode in ("static", "dynamic")]
    answer = {}
    for number, (way, mode) in enumerate(cases):

        def to(run: str, number: int = number) -> dict[str, str]:
            name = f"{run}{number}"
            return {"table": f"{place}{name}", "name": name, "format": kind}

        found = outcomes(spark, str(folder / "root"), to, (way, "grouped", mode))
        same = found == [found[0]] * 3 and bool(found[0][1])
        answer[f"{way}, {mode}"] = "" if same else str(found)[:2000]
    print(json.dumps({"cases": answer}))
    spark.stop()


if __name__ == "__main__":
    main()
