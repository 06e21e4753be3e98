"""A Dagster asset whose step, killed and retried, goes on where it stopped.

Two exit codes of `durable-shuffle run` are final: 3 (a newer run has the job) and 4 (another
attempt would fail in the same way).
"""

import os
import subprocess

import dagster as dg

COMMAND = os.environ.get(
    "NIGHTLY_COMMAND",
    "durable-shuffle run --max-retries 1 -- spark-submit "
    "--conf spark.durableShuffle.url=s3://my-bucket/shuffle "
    "--conf spark.durableShuffle.job=nightly nightly.py s3a://my-bucket/orders s3a://my-bucket/counts",
).split()
FINAL = (3, 4)


@dg.asset(
    retry_policy=dg.RetryPolicy(max_retries=3, delay=float(os.environ.get("NIGHTLY_DELAY", "300"))),
    op_tags={"dagster/concurrency_key": "nightly"},  # two runs at a time would fence each other
)
def order_counts() -> None:
    """Counts of orders, one row per customer."""
    code = subprocess.run(COMMAND, check=False).returncode
    if code in FINAL:
        raise dg.Failure(f"exit code {code}: no retry", allow_retries=False)
    if code:
        raise RuntimeError(f"exit code {code}")


defs = dg.Definitions(assets=[order_counts])

if __name__ == "__main__":
    raise SystemExit(not dg.materialize([order_counts]).success)
