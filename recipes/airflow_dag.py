"""An Airflow 3 DAG whose task, killed and retried, goes on where it stopped.

Airflow retries the task on any worker. Two exit codes of `durable-shuffle run` are final: 3 (a
newer run has the job) and 4 (another attempt would fail in the same way). `max_active_runs=1`,
because two runs of one job at a time would fence each other.
"""

import os
import subprocess
from datetime import timedelta

from airflow.exceptions import AirflowFailException
from airflow.sdk import dag, task

COMMAND = os.environ.get(
    "NIGHTLY_COMMAND",
    "durable-shuffle run --max-retries 1 -- spark-submit "
    "--conf spark.durableShuffle.url=s3://my-bucket/shuffle "
    "--conf spark.durableShuffle.job=nightly nightly.py s3a://my-bucket/orders s3a://my-bucket/counts",
).split()
FINAL = (3, 4)


@dag(schedule="@daily", catchup=False, max_active_runs=1)
def nightly() -> None:
    """One task, which may be retried for ever without computing anything twice."""

    @task(retries=3, retry_delay=timedelta(seconds=int(os.environ.get("NIGHTLY_DELAY", "300"))))
    def count_orders() -> None:
        code = subprocess.run(COMMAND, check=False).returncode
        if code in FINAL:
            raise AirflowFailException(f"exit code {code}: no retry")
        if code:
            raise RuntimeError(f"exit code {code}")

    count_orders()


nightly_dag = nightly()

if __name__ == "__main__":
    nightly_dag.test()
