"""What a failure costs: workloads times faults times peers, interleaved, checked row by row.

Exit status 0 only if every answer is DuckDB's, no committed producer ran again, and every fault of
the schedule fired; 1 names the checks that failed.
"""

from typing import Any

from rich.console import Console

from durable_shuffle.bench.matrix.matrix import RecoveryOptions, measured
from durable_shuffle.bench.matrix.summary_table import summary_table
from durable_shuffle.shuffle.base.clock import Clock

__all__ = ["RecoveryOptions", "run_recovery_bench"]


def run_recovery_bench(
    options: RecoveryOptions, console: Console, command: str, clock: Clock | None = None
) -> dict[str, Any]:
    """Run the matrix, print its schedule and its table, and return the document.

    Raises:
        InvalidInputError: an unknown name, or no combination that makes sense.
        UnavailableError: a cluster could not be started or ended by itself.
    """
    document = measured(options, console, command, clock)
    console.print(summary_table(document["summary"]))
    if document["passed"]:
        console.print("every fault fired; all rows of the durable peer are DuckDB's")
    return document
