"""What it costs to recognize one partition of a large table: Delta, Iceberg, plain Parquet.

10,000 files in 500 partitions, a filter on one partition. The same query is planned by Spark alone
and with its identity before, in turns. Bar: the identity takes at most 1.5 s more (median over the
rounds). Writes its table of docs/benchmarks.md.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import table_session
from document import record

FILES, PARTITIONS = 10_000, 500
BAR_SECONDS = 1.5
PROGRAM = Path(__file__).with_name("tables_process.py")
HEAD = ("table", "Spark's planning s", "with identity s", "beyond s", "rounds")


@pytest.mark.spark
@pytest.mark.timeout(0)
def test_identity_of_a_partition(
    benchmark: Any, measuring: bool, rounds: int, tmp_path: Path
) -> None:
    """The identity of one partition costs little beside planning."""
    if not measuring:
        pytest.skip("another Spark, and 10,000 files: only when measuring")
    minor, jars, variables = table_session.found()
    sizes = map(str, (FILES, PARTITIONS, rounds))
    command = [sys.executable, str(PROGRAM), str(tmp_path), jars, *sizes]

    def run() -> dict[str, Any]:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                **variables,
            },
        )
        return dict(json.loads(next(t for t in done.stdout.splitlines() if t.startswith("{"))))

    found: dict[str, Any] = benchmark.pedantic(run, rounds=1)
    assert found.pop("spark").startswith(minor)
    late = [table for table, seconds in found.items() if not told(table, seconds)]
    assert not late


def told(table: str, seconds: dict[str, list[float]]) -> bool:
    """Show what one table took, put it into the document, and return whether it is in the bar."""
    planned, recognized = seconds["planned"], seconds["recognized"]
    beyond = sorted(r - p for p, r in zip(planned, recognized, strict=True))
    middle = statistics.median(beyond)
    row = (
        f"{table}, {FILES:,} files in {PARTITIONS} partitions",
        f"{statistics.median(planned):.2f}",
        f"{statistics.median(recognized):.2f}",
        f"{middle:.2f} ({beyond[0]:.2f} to {beyond[-1]:.2f})",
        str(len(beyond)),
    )
    print("  ".join(row))
    record("tables", HEAD, row)
    return middle <= BAR_SECONDS
