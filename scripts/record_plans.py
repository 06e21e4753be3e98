"""Record what this environment's Spark says of many plans, for tests that run without a JVM.

    python scripts/record_plans.py                                   # the version of .venv
    .venv-compat-4.0-3.11/bin/python scripts/record_plans.py         # another one

It writes tests/unit/jobs/recorded_plans/spark-<version>.json.xz. Run it with each version when the
identity of plans asks the JVM for something else, or when fingerprints change on purpose.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support")]


def main() -> None:
    """Record all plans in a new session."""
    os.environ |= {"TZ": "UTC", "SPARK_LOCAL_IP": "127.0.0.1"}
    time.tzset()
    from pyspark.sql import SparkSession
    from recorded_plans import record, save

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = save(record(spark, Path(folder)))
    spark.stop()
    sys.stdout.write(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
