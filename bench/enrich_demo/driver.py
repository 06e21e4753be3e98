"""The process whose executors get killed: the stream of `enrich_stream` as tasks of a cluster.

    python -m durable_shuffle.bench.enrich_demo.driver WORK ARGUMENTS_JSON

It stays until the stream is drained or cancelled from outside; what that came to is in WORK/result.
"""

import json
import sys
from pathlib import Path

from durable_shuffle.bench.cluster.local_cluster import start_cluster
from durable_shuffle.bench.enrich_demo.stream import enrich_stream
from durable_shuffle.jobs.spark_tasks.launcher import spark_tasks
from durable_shuffle.recovery.pipeline.commands.requests import Description

FACTORY = "durable_shuffle.bench.enrich_demo.stream:enrich_stream"


def result_file(work: Path) -> Path:
    """Where it says what the stream came to."""
    return work / "result"


def main(work: Path, arguments: str) -> None:
    """Run it; see the module's docstring."""
    events = work / "event-logs"
    events.mkdir()
    quiet = {"spark.ui.showConsoleProgress": "false", "spark.eventLog.enabled": "false"}
    spark = start_cluster(work, 1, events, quiet, cores=2)
    result = enrich_stream(**json.loads(arguments)).run(
        launcher=spark_tasks(spark),
        given=Description(FACTORY, arguments, ""),
        serve=True,
    )
    made = work / "result.new"
    made.write_text(json.dumps({"phase": str(result.phase), "cause": str(result.cause or "")}))
    made.rename(result_file(work))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
