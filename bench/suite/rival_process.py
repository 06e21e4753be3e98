"""A driver with settings of its own that answers TPC-H queries: `rival_process.py WORK EVENTS DATA
SETTINGS_JSON`.

It reads names of queries from standard input and ends with it. EVENTS gets JSON lines: `ready`,
then per name `done` with seconds and the number of rows that are not DuckDB's; `failed` if an error
ends it.
"""

import json
import sys
from pathlib import Path

from user_session import tpch_session, user_session

from durable_shuffle.bench.cluster.event_file import EventFile, failures_told
from durable_shuffle.bench.tpch.answers import Answers
from durable_shuffle.bench.tpch.data import TpchFiles
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES
from durable_shuffle.shuffle.base.clock import SystemClock

RUNS = 2
"""Of each query that is asked for; the last one counts. Two cases share the other JVM, so per round
it compiles the code of a query twice."""


def main(work: str, events: str, data: str, settings: str) -> None:
    """Answer queries until there are no more."""
    told, clock = EventFile(Path(events)), SystemClock()
    with failures_told(told):
        answers = Answers(TpchFiles(Path(data)))
        spark = user_session(Path(work) / "spark-local", json.loads(settings))
        session = tpch_session(spark, Path(data))
        told.emit("ready")
        for line in sys.stdin:
            query = line.strip()
            for _ in range(RUNS):
                start = clock.monotonic()
                rows = session.sql(TPCH_QUERIES[query]).collect()
                seconds = clock.monotonic() - start
            told.emit("done", seconds=seconds, differing=answers.differing(query, rows))
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
