"""Python workers as pip-installed PySpark starts them: with its zip first on their path.

All other tests leave out the zip (`linked_spark_home`), and their workers are forks of a daemon
that has imported pandas (`quick_workers`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from durable_shuffle import DurableShuffle

def where(batches):
    import pyarrow as pa
    import pyspark
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [pyspark.__file__]})

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
stored = DurableShuffle(spark, sys.argv[1], job="tests").repartition(spark.range(1000), 3, "id")
paths = [row.path for row in spark.range(1).mapInArrow(where, "path string").collect()]
print(json.dumps({"ids": sorted(row.id for row in stored.collect()), "paths": paths}))
"""


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_workers_that_import_pyspark_from_its_zip(tmp_path: Path) -> None:
    """They store rows and read them back."""
    ours = ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "root")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["ids"] == list(range(1000))
    assert answer["paths"]
    assert all("pyspark.zip" in path for path in answer["paths"])
