"""The page of a user's own job: who stored what when, and which work was used again. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from durable_shuffle.jobs.reports.drawing import legend, timeline_svg
from durable_shuffle.jobs.reports.drawn_time import DrawnTime
from durable_shuffle.jobs.reports.job_history import (
    ConsumerView,
    JobHistory,
    StageHistory,
    StoredAttempt,
)
from durable_shuffle.jobs.reports.log_history import AppendingAttempt
from durable_shuffle.jobs.reports.page import (
    Value,
    heading,
    page,
    plain_list,
    section,
    table,
    tiles,
)
from durable_shuffle.jobs.reports.timeline import Bar, Mark, Outcome, Timeline
from durable_shuffle.jobs.text import plural, size

_OUTCOMES: dict[Outcome, str] = {
    "done": "counts",
    "reused": "counts, and a later driver used it again",
    "retry": "resumed",
    "again": "written although a COMMIT stood",
    "open": "not at its end yet: at work, or stopped",
    "lost": "left without a COMMIT",
}
_CHANGES = {"compact": "compacted", "replace": "repaired"}
_PARTITION = re.compile(r"[0-9a-f]{32}-k(\d+)")
"""Task of a consumer that reads one partition of one stage."""


def job_timeline(history: JobHistory) -> Timeline:
    """Return one lane per stage and per consumer, at times of day; long pauses are shortened."""
    time = DrawnTime(_moments(history))
    lanes: list[str] = []
    bars: list[Bar] = []
    marks = [
        Mark(time.at(at), f"driver {generation}", kind="note") for at, generation in history.drivers
    ]
    for number, stage in enumerate(history.stages, 1):
        lane = f"{number} {stage.name}"
        lanes.append(lane)
        bars += [_attempt_bar(lane, stage, a, time) for a in stage.attempts]
        bars += [_appending_bar(lane, a, time) for a in stage.appending]
        marks += [Mark(time.at(at), _CHANGES[what], lane, what) for at, what in stage.changes]
    for consumer in dict.fromkeys(view.consumer for view in history.views):
        lanes.append(consumer)
        seen: set[str] = set()
        for view in history.views:
            if view.consumer == consumer:
                bars.append(_view_bar(view, time, again=view.task in seen))
                seen.add(view.task)
    return Timeline(
        history.job,
        time.seconds,
        time.took,
        tuple(lanes),
        tuple(bars),
        tuple(marks),
        time.spans,
        time.pauses,
    )


def _attempt_bar(lane: str, stage: StageHistory, a: StoredAttempt, time: DrawnTime) -> Bar:
    outcome, told = _outcome(stage, a)
    return Bar(
        lane, "map", f"producer {a.producer}", time.at(a.first), time.at(a.last), outcome,
        str(a.producer), f"{told}, {size(a.stored_bytes)}",
    )  # fmt: skip


def _outcome(stage: StageHistory, a: StoredAttempt) -> tuple[Outcome, str]:
    if a.fate == "uncommitted":
        return "lost", "left without a COMMIT"
    if a.fate == "superseded":
        return "again", "written although a COMMIT stood"
    later = [str(generation) for at, generation in stage.uses[1:] if at > a.last]
    if not later:
        return "done", "committed"
    drivers = f"driver{'' if len(later) == 1 else 's'} {', '.join(later)}"
    return "reused", f"committed; used again by {drivers}"


def _appending_bar(lane: str, a: AppendingAttempt, time: DrawnTime) -> Bar:
    outcome: Outcome = "done"
    told = f"ended with {a.end}" if a.end else "taken over by another attempt"
    if a.newest and (a.end is None or a.end == "SUSPEND"):
        outcome, told = "open", "suspended" if a.end else "open, may append more"
    wrote = f"{plural(a.appends, 'append')}, {plural(a.rows, 'row')}, {size(a.stored_bytes)}"
    return Bar(
        lane, "map", f"producer {a.producer}", time.at(a.first), time.at(a.last), outcome,
        str(a.producer), f"{told}, {wrote}",
    )  # fmt: skip


def _view_bar(view: ConsumerView, time: DrawnTime, *, again: bool) -> Bar:
    match = _PARTITION.fullmatch(view.task)
    label = f"partition {int(match[1])}" if match else view.task
    outcome: Outcome = "retry" if again else "done"
    told = "read to the end" if view.finished else "gave the rest back"
    if view.newest and not view.finished:
        outcome, told = "open", "stopped" if view.released else "still reading, or gone"
    elif not (view.finished or view.released):
        told = "taken over by a later view; what it acknowledged counts"  # killed or told to stop
    return Bar(
        view.consumer, "reduce", label, time.at(view.first), time.at(view.last), outcome,
        label.rpartition(" ")[2], f"{told}, {plural(view.records, 'record')} in its log",
    )  # fmt: skip


def job_page(history: JobHistory, storage: str) -> str:
    """Return the page.

    Args:
        storage: its description, without credentials.
    """
    line = job_timeline(history)
    attempts = [a for stage in history.stages for a in stage.attempts]
    reused = sum(max(0, len(stage.uses) - 1) for stage in history.stages)
    again = sum(a.fate == "superseded" for a in attempts)
    left = sum(stage.left_bytes for stage in history.stages)
    stored = sum(stage.data_bytes for stage in history.stages)
    phases = {"map": "a producer", "reduce": "a consumer's view"}
    body = [
        heading(f"Job {history.job}", f"{storage}. {_span(history)}", None),
        tiles(
            [
                ("stages", str(len(history.stages)), f"{_counted(history.stages)}{size(stored)}"),
                ("reused stages", str(reused), _drivers(history)),
                ("committed work done again", str(again), "producers, counted from storage"),
                ("left-over bytes", size(left) or "", "durable-shuffle gc" if left else "none"),
            ]
        ),
        section(
            "When output was stored",
            "Times are the storage's own, in UTC. A producer's attempt is seen from its first "
            "stored segment to its COMMIT, that of a stream from its first to its last append, a "
            "consumer's view from its OPEN to its last acknowledgement. Hover over a bar for "
            "details.",
        ),
        f'<div class="card">{timeline_svg(line)}{legend([line], _OUTCOMES, phases)}</div>'
        if line.bars
        else "<p>Nothing is stored yet.</p>",
        section("Stages"),
        _stages(history.stages),
    ]
    if history.views:
        body += [section("Consumers"), _consumers(history)]
    errors = [f"{s.name}: {s.error}" for s in history.stages if s.error]
    if errors:
        body += [section("Could not be read"), plain_list(errors)]
    return page(f"Job {history.job}", body)


def _moments(history: JobHistory) -> list[float]:
    found = [at for at, _ in history.drivers]
    for stage in history.stages:
        found += [t for a in stage.attempts for t in (a.first, a.last)]
        found += [t for a in stage.appending for t in a.times]
        found += [t for t, _ in stage.changes]
        found += [t for t in (stage.created, stage.sealed) if t is not None]
    return found + [t for view in history.views for t in view.times]


def _counted(stages: Sequence[StageHistory]) -> str:
    counts = Counter(stage.status.partition(",")[0] for stage in stages)
    return "".join(f"{count} {word}, " for word, count in counts.items())


def _drivers(history: JobHistory) -> str:
    return f"{plural(len(history.drivers), 'driver')} in all"


def _span(history: JobHistory) -> str:
    moments = _moments(history)
    if not moments:
        return ""
    first, last = (datetime.fromtimestamp(t, UTC) for t in (min(moments), max(moments)))
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC."


def _stages(stages: Sequence[StageHistory]) -> str:
    rows: list[list[Any]] = []
    for number, s in enumerate(stages, 1):
        drivers = ", ".join(str(generation) for _, generation in s.uses)
        row: list[Any] = [f"{number} {s.name}", s.status, drivers]
        if s.ended is not None:
            row += ["", "", "", f"{s.appends:,}"]
        else:
            counts = sum(a.fate == "counts" for a in s.attempts)
            again = sum(a.fate == "superseded" for a in s.attempts)
            row += [
                f"{counts} of {s.producers or '?'}",
                str(sum(a.fate == "uncommitted" for a in s.attempts)),
                Value(str(again), "bad" if again else "good"),
                "",
            ]
        counted = s.ended is not None or s.sealed is not None  # else nobody has added them up
        rows.append([*row, *([f"{s.rows:,}", size(s.data_bytes)] if counted else ["", ""])])
    head = ["stage", "status", "drivers", "committed", "uncommitted", "run again", "appends"]
    shown = [*range(9)]
    if not any(s.ended is not None for s in stages):
        shown.remove(6)
    elif all(s.ended is not None for s in stages):
        shown = [0, 1, 2, 6, 7, 8]
    heads = [*head, "rows", "stored"]
    return table([heads[n] for n in shown], [[row[n] for n in shown] for row in rows], left=3)


def _consumers(history: JobHistory) -> str:
    rows: list[list[Any]] = []
    for consumer in dict.fromkeys(view.consumer for view in history.views):
        views = [v for v in history.views if v.consumer == consumer]
        tasks = {v.task for v in views}
        finished = {v.task for v in views if v.finished}
        records = sum(v.records for v in views)
        rows.append(
            [
                consumer, str(len(tasks)), str(len(finished)), str(len(views)),
                str(len(views) - len(tasks)), f"{records:,}",
            ]
        )  # fmt: skip
    head = ["consumer", "tasks", "finished", "views", "resumed", "records in their logs"]
    return table(head, rows, left=1)
