"""The pages of throughput and storage benchmarks, from their JSON documents alone. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from durable_shuffle.bench.pages.bars import Amount, bar_chart
from durable_shuffle.bench.workloads.faults import WORKLOADS
from durable_shuffle.jobs.reports.page import code, element, heading, page, section, table
from durable_shuffle.jobs.text import size


def throughput_page(document: dict[str, Any]) -> str:
    """Return the page of a throughput benchmark."""
    lines = document["lines"]
    body = [
        heading(
            "What a hand-over costs",
            f"No faults. Scale {document['scale']:g}, seed {document['seed']}, {_when(document)}",
            document["failures"],
            "all rows are DuckDB's",
        ),
        section("Seconds of the whole job", "Map, hand over, reduce. Median over the rounds."),
        bar_chart(
            _groups(
                lines, "seconds", lambda x: f"{x['seconds']:.1f} s, {x['mib_per_second']:.0f} MiB/s"
            )
        ),
        section(
            "Beside the durable peer",
            "Seconds by those of the durable peer in the same round, median. Above 1: slower.",
        ),
        bar_chart(_groups(lines, "ratio", lambda x: f"{x['ratio']:.2f}")),
        section("All figures"),
        table(
            ["", "peer", "sec", "min", "max", "by durable", "rows", "rows/s", "MiB/s"],
            [
                [
                    x["workload"],
                    x["peer"],
                    *(f"{x[n]:.2f}" for n in ("seconds", "least", "most")),
                    "" if x["ratio"] is None else f"{x['ratio']:.2f}",
                    f"{x['rows']:,}",
                    f"{x['rows_per_second']:,.0f}",
                    f"{x['mib_per_second']:.1f}",
                ]
                for x in lines
            ],
            left=2,
        ),
        section("Again on your machine"),
        element("p", code(document["command"])),
    ]
    return page("What a hand-over costs", body)


def storage_page(document: dict[str, Any]) -> str:
    """Return the page of a storage benchmark."""
    groups = []
    for x in document["lines"]:
        bars = [Amount("durable", x["median"], f"{x['median']:.2f} ms")]
        if x["bare_median"] is not None:
            bars.append(Amount("bare driver", x["bare_median"], f"{x['bare_median']:.2f} ms"))
        groups.append((x["operation"], bars))
    large = size(document["large_bytes"]) or ""
    small = [g for g in groups if "large" not in g[0]]
    body = [
        heading(
            "What storage costs",
            f"{document['storage']}, seed {document['seed']}, {_when(document)}",
            document["failures"],
            "all bytes came back",
        ),
        section(
            "Milliseconds per call",
            "Median. Ours creates exclusively, and locally syncs every write to disk; the bare "
            "driver does neither. The ratio is the price of that.",
        ),
        bar_chart(small),
        section(f"Large objects, {large}"),
        bar_chart([g for g in groups if "large" in g[0]]),
        section("All figures"),
        table(
            ["operation", "calls", "ms", "slowest", "bare ms", "slowest", "ratio", "MiB/s"],
            [
                [
                    x["operation"],
                    f"{x['calls']}",
                    *(_number(x[n]) for n in ("median", "slowest", "bare_median", "bare_slowest")),
                    _number(x["ratio"]),
                    "" if x["mib_per_second"] is None else f"{x['mib_per_second']:,.0f}",
                ]
                for x in document["lines"]
            ],
            left=1,
        ),
        section("Again on your machine"),
        element("p", code(document["command"])),
    ]
    return page("What storage costs", body)


def _groups(
    lines: Sequence[dict[str, Any]], name: str, text: Any
) -> list[tuple[str, list[Amount]]]:
    groups: dict[str, list[Amount]] = {}
    for x in lines:
        if x[name] is not None:
            label = f"{x['workload']}: {WORKLOADS[x['workload']]}"
            groups.setdefault(label, []).append(Amount(x["peer"], x[name], text(x)))
    return list(groups.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _when(document: dict[str, Any]) -> str:
    date = datetime.fromtimestamp(document["date_wall_seconds"], UTC)
    rounds = document["rounds"]
    return (
        f"{rounds} round{'s' if rounds > 1 else ''}, {date:%Y-%m-%d %H:%M} UTC. "
        f"{document['machine']}."
    )
