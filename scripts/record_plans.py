"""Record what this environment's Spark says of many plans, for tests that run without a JVM.

    python scripts/record_plans.py                                   # the version of .venv
    .venv-compat-4.0-3.11/bin/python scripts/record_plans.py         # another one

It writes tests/unit/jobs/recorded_plans/spark-<version>.json.xz. Run it with each version when the
identity of plans asks the JVM for something else, or when fingerprints change on purpose. It says
whose identities are not what they were; Spark's own patch releases may change some.
"""

import os
import shutil
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
    folder = Path(tempfile.gettempdir(), "durable-shuffle-recorded-plans")  # a path is an input
    folder.mkdir()
    try:
        path, other = save(record(spark, folder))
    finally:
        shutil.rmtree(folder)
    spark.stop()
    changed = f"; other identities: {', '.join(other)}" if other else ""
    sys.stdout.write(f"\n{path.relative_to(ROOT)}: {path.stat().st_size} bytes{changed}\n")


if __name__ == "__main__":
    main()
