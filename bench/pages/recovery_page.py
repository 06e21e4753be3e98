"""The page of a recovery benchmark, from its JSON document alone. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from durable_shuffle.bench.pages.bars import Amount, bar_chart
from durable_shuffle.bench.pages.measured import how_measured
from durable_shuffle.bench.workloads.faults import FAULTS, WORKLOADS
from durable_shuffle.jobs.reports.drawing import legend, timeline_svg
from durable_shuffle.jobs.reports.page import (
    Html,
    Value,
    code,
    element,
    heading,
    page,
    plain_list,
    section,
    table,
    tiles,
)
from durable_shuffle.jobs.reports.timeline import Timeline
from durable_shuffle.jobs.text import size


def recovery_page(document: dict[str, Any]) -> str:
    """Return the page."""
    summary = document["summary"]
    hurt = [s for s in summary if s["fault"] != "F0"]
    date = datetime.fromtimestamp(document["date_wall_seconds"], UTC)
    title = "What a failure costs"
    soft = (
        f"Scale {document['scale']:g}, seed {document['seed']}, {document['rounds']} "
        f"round{'s' if document['rounds'] > 1 else ''}, {date:%Y-%m-%d %H:%M} UTC. "
        f"{document['machine']}."
    )
    body = [
        heading(
            title,
            soft,
            document["failures"],
            "every fault fired, all rows of the durable peer are right",
        ),
        tiles(_headline(hurt)),
        section(
            "Seconds lost per failure",
            "Wall time beyond the same peer's run without a fault, in the same round; median. "
            "Starting processes is not counted.",
        ),
        bar_chart(_groups(hurt, "seconds_lost", _lost)),
        section(
            "Finished map tasks done once more",
            "Tasks that had ended and had to run again because what they made was gone.",
        ),
        bar_chart(_groups(hurt, "maps_again", lambda s: f"{s['maps_again']:g} of {s['maps']}")),
        *_wrong(hurt),
        section(
            "What happened, task by task",
            "First round. All drawings of one fault have one scale; hover over a bar for details.",
        ),
        *_timelines(document["timelines"]),
        section("All figures", _COLUMNS),
        _table(summary),
        section("Schedule", "Drawn from the seed: the same seed hits the same places."),
        plain_list(document["schedule"][1:]),
        section("Again on your machine"),
        element("p", code(document["command"])),
    ]
    if document["refused"]:
        body += [
            section("Not run"),
            plain_list([f"{r['cell']}: {r['why']}" for r in document["refused"]]),
        ]
    body += how_measured(document["peers"])
    return page(title, body)


_COLUMNS = (
    "sec: median wall time, smallest to largest in brackets. by durable: this peer's seconds by "
    "the durable peer's, median over rounds. rewritten, reread: uncompressed Arrow bytes beyond "
    "the run without a fault. twice, missing: input records in the result. orphans: bytes that "
    "attempts left which do not count."
)


def _headline(hurt: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    peers = list(dict.fromkeys(s["peer"] for s in hurt))
    found = []
    for label, name, form in (
        ("lost per failure, mean", "seconds_lost", "{:+.1f} s"),
        ("map tasks done again, in all", "maps_again", "{:g}"),
    ):
        values = {
            peer: [s[name] for s in hurt if s["peer"] == peer and s[name] is not None]
            for peer in peers
        }
        mean = name == "seconds_lost"
        totals = {p: sum(v) / (len(v) if mean else 1) for p, v in values.items() if v}
        if "durable" in totals:
            others = ", ".join(f"{p} {form.format(v)}" for p, v in totals.items() if p != "durable")
            found.append((f"durable: {label}", form.format(totals["durable"]), others))
    wrong = sum(s["records_twice"] + s["records_missing"] for s in hurt if s["peer"] == "durable")
    others = ", ".join(
        f"{p} {sum(s['records_twice'] + s['records_missing'] for s in hurt if s['peer'] == p):,}"
        for p in peers
        if p != "durable"
    )
    found.append(("durable: records twice or missing", f"{wrong:,}", others))
    return found


def _groups(hurt: Sequence[dict[str, Any]], name: str, text: Any) -> list[tuple[str, list[Amount]]]:
    groups: dict[str, list[Amount]] = {}
    for s in hurt:
        if s[name] is not None:
            label = f"{s['workload']} {s['fault']}: {FAULTS[s['fault']].title}"
            groups.setdefault(label, []).append(Amount(s["peer"], s[name], text(s)))
    return list(groups.items())


def _wrong(hurt: Sequence[dict[str, Any]]) -> list[str]:
    """Return a chart of records that are wrong in the result, if there are any."""
    counted = [{**s, "wrong": s["records_twice"] + s["records_missing"]} for s in hurt]
    shown = {(s["workload"], s["fault"]) for s in counted if s["wrong"]}
    if not shown:
        return []
    groups = [s for s in counted if (s["workload"], s["fault"]) in shown]
    return [
        section(
            "Records in the ledger twice, or not at all",
            "What an effect outside of Spark sees when its task is run again.",
        ),
        bar_chart(_groups(groups, "wrong", lambda s: f"{s['wrong']:,}")),
    ]


def _lost(s: dict[str, Any]) -> str:
    low, high = s["seconds_lost_spread"]
    spread = f" ({low:+.1f} to {high:+.1f})" if s["rounds"] > 1 else ""
    return f"{s['seconds_lost']:+.1f} s{spread}"


def _timelines(entries: Sequence[dict[str, Any]]) -> list[Html]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault((entry["workload"], entry["fault"]), []).append(entry)
    parts = []
    for (workload, fault), found in groups.items():
        drawn = [(e["peer"], Timeline.from_dict(e)) for e in found]
        seconds = max(timeline.seconds for _, timeline in drawn)
        parts.append(element("h3", f"{workload} {fault}: {FAULTS[fault].title}"))
        parts.append(element("p", WORKLOADS[workload], class_="soft"))
        inner = []
        for peer, timeline in drawn:
            inner.append(element("h3", f"{peer}, {timeline.took:.1f} s"))
            inner.append(timeline_svg(timeline, seconds))
        key = legend([timeline for _, timeline in drawn])
        parts.append(element("div", *inner, key, class_="card"))
    return parts


def _table(summary: Sequence[dict[str, Any]]) -> str:
    head = [
        "", "fault", "peer", "sec", "lost", "by durable", "maps again", "rewritten", "reread",
        "twice", "missing", "PUT", "GET", "LIST", "DELETE", "orphans",
    ]  # fmt: skip
    rows: list[list[Any]] = []
    before = None
    for s in summary:
        calls = s["operations"] or {}
        wrong = s["records_twice"] + s["records_missing"]
        ours = s["peer"] == "durable"
        again = f"{s['maps_again']:g} of {s['maps']}"
        calm = s["fault"] == "F0"
        low, high = s["seconds_spread"]
        rows.append(
            [
                s["workload"] if before is None or before[0] != s["workload"] else "",
                s["fault"] if before != (s["workload"], s["fault"]) else "",
                s["peer"],
                f"{s['seconds']:.1f}" + (f" ({low:.1f} to {high:.1f})" if s["rounds"] > 1 else ""),
                "" if calm else f"{s['seconds_lost']:+.1f}",
                "" if s["ratio"] is None else f"{s['ratio']:.2f}",
                "" if calm else Value(again, "bad" if s["maps_again"] else "good"),
                "" if calm else size(int(s["bytes_rewritten"])),
                "" if calm else size(int(s["bytes_reread"])),
                Value(f"{s['records_twice']:,}", "bad") if wrong else "0",
                Value(f"{s['records_missing']:,}", "bad") if wrong else "0",
                *(f"{calls[n]:g}" if ours else "" for n in ("PUT", "GET", "LIST", "DELETE")),
                size(int(s["orphan_bytes"])) if s["orphan_bytes"] is not None else "",
            ]
        )
        before = (s["workload"], s["fault"])
    return table(head, rows, left=3)
