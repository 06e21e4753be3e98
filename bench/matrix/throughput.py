"""What a hand-over costs when nothing fails: the same jobs, peers in turn, several rounds.

Exit status 0 only if every answer is DuckDB's.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from durable_shuffle.bench.matrix.matrix import RecoveryOptions, measured
from durable_shuffle.bench.workloads.workloads import WORKLOADS
from durable_shuffle.shuffle.base.clock import Clock

_MIB = 1 << 20


def run_throughput_bench(
    options: RecoveryOptions, console: Console, command: str, clock: Clock | None = None
) -> dict[str, Any]:
    """Run every workload with every peer, print a table, and return the document.

    Args:
        options: its faults are left out.

    Raises:
        InvalidInputError: an unknown name.
        UnavailableError: a cluster could not be started or ended by itself.
    """
    document = measured(replace(options, faults=("F0",)), console, command, clock)
    lines = _lines(document, options)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("", "peer", "sec", "min", "max", "by durable", "rows/s", "MiB/s"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("", "peer") else "right")
    for line in lines:
        ratio = line["ratio"]
        table.add_row(
            line["workload"],
            line["peer"],
            *(f"{line[n]:.1f}" for n in ("seconds", "least", "most")),
            "" if ratio is None else f"{ratio:.2f}",
            f"{line['rows_per_second']:,.0f}",
            f"{line['mib_per_second']:.1f}",
        )
    console.print(table)
    document.update(kind="throughput", lines=lines)
    return document


def _lines(document: dict[str, Any], options: RecoveryOptions) -> list[dict[str, Any]]:
    found = []
    for s in document["summary"]:
        mine = [
            f["map_bytes"]
            for f in document["figures"]
            if (f["workload"], f["peer"]) == (s["workload"], s["peer"])
        ]
        workload = WORKLOADS[s["workload"]]
        rows = workload.maps * workload.rows_of(options.scale, 0)
        found.append(
            {
                "workload": s["workload"],
                "peer": s["peer"],
                "rows": rows,
                "seconds": s["seconds"],
                "least": s["seconds_spread"][0],
                "most": s["seconds_spread"][1],
                "ratio": s["ratio"],
                "rows_per_second": rows / s["seconds"],
                "mib_per_second": statistics.median(mine) / _MIB / s["seconds"],
            }
        )
    return found


def kinds(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return the workloads of the lines, in their order."""
    return list(dict.fromkeys(line["workload"] for line in lines))
