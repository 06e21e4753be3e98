"""The table at the end of a recovery benchmark, at most 80 columns wide."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from durable_shuffle.jobs.text import size


def summary_table(summary: Sequence[dict[str, Any]]) -> Table:
    """Return one line per cell; the entries are those of the document."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("", "fault", "peer"):
        table.add_column(name, no_wrap=True)
    for name in ("sec", "lost", "ratio", "maps again", "rewritten", "reread", "twice", "missing"):
        table.add_column(name, no_wrap=True, justify="right")
    before = None
    for s in summary:
        again = "" if s["fault"] == "F0" else f"{s['maps_again']:g}/{s['maps']}"
        table.add_row(
            s["workload"] if before is None or before[0] != s["workload"] else "",
            s["fault"] if before != (s["workload"], s["fault"]) else "",
            s["peer"],
            f"{s['seconds']:.1f}",
            "" if s["seconds_lost"] is None else f"{s['seconds_lost']:+.1f}",
            "" if s["ratio"] is None else f"{s['ratio']:.2f}",
            again,
            size(int(s["bytes_rewritten"])) if s["bytes_rewritten"] else "0",
            size(int(s["bytes_reread"])) if s["bytes_reread"] else "0",
            str(s["records_twice"]),
            str(s["records_missing"]),
        )
        before = (s["workload"], s["fault"])
    return table
