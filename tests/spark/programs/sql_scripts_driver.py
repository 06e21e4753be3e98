"""Prints the tables of SQL scripts: `sql_scripts_driver.py plain|read INPUTS FILE:FORMAT...`.

`plain` runs the scripts in plain Spark before. Spark's settings, its catalog among them, are those
of SPARK_CONF_DIR.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

SUPPORT = Path(__file__).parents[2] / "support"


def main() -> None:
    """Run, read, print."""
    sys.path.insert(0, str(SUPPORT))
    from sql_scripts import Script, rows_in

    from durable_shuffle.jobs.transparent_program import statements_in

    how, inputs = sys.argv[1], Path(sys.argv[2])
    spark = SparkSession.builder.getOrCreate()
    answer = {}
    for wanted in sys.argv[3:]:
        script = Script(*wanted.split(":"))
        if how == "plain":
            session = spark.newSession()
            for statement in statements_in(session, script.text(inputs)):
                session.sql(statement).collect()
        answer[script.name] = rows_in(spark, script)
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main()
