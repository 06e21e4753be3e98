"""The page of a job: when producers and consumers stored data, and what was used again. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from durable_shuffle.jobs.reports.drawing import legend, timeline_svg
from durable_shuffle.jobs.reports.job_history import (
    AppendingAttempt,
    ConsumerView,
    JobHistory,
    StageChange,
    StageHistory,
    StoredAttempt,
)
from durable_shuffle.jobs.reports.page import (
    Html,
    Value,
    element,
    heading,
    page,
    plain_list,
    section,
    table,
    tiles,
)
from durable_shuffle.jobs.reports.timeline import Bar, DrawnTime, Mark, Outcome, Timeline
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
    marks = [Mark(time.at(wall), f"driver {n}", kind="note") for wall, n in history.drivers]
    for number, stage in enumerate(history.stages, 1):
        lane = f"{number} {stage.name}"
        lanes.append(lane)
        bars += [_bar(lane, a, time, *_attempt(stage, a)) for a in stage.attempts]
        bars += [_bar(lane, a, time, *_appending(a)) for a in stage.appending]
        marks += [
            Mark(time.at(wall), _change(what, producers), lane, what)
            for wall, what, producers in stage.changes
        ]
    seen: set[tuple[str, str]] = set()
    for view in history.views:
        again = (view.consumer, view.task) in seen
        seen.add((view.consumer, view.task))
        bars.append(_bar(view.consumer, view, time, *_view(view, again=again)))
    return Timeline(
        history.job,
        time.seconds,
        time.took,
        (*lanes, *_consumers_of(history)),
        tuple(bars),
        tuple(marks),
        time.spans,
        time.pauses,
    )


def _consumers_of(history: JobHistory) -> list[str]:
    return list(dict.fromkeys(view.consumer for view in history.views))


def _bar(
    lane: str,
    item: StoredAttempt | AppendingAttempt | ConsumerView,
    time: DrawnTime,
    outcome: Outcome,
    told: str,
) -> Bar:
    if isinstance(item, ConsumerView):
        match = _PARTITION.fullmatch(item.task)
        phase, label = "reduce", f"partition {int(match[1])}" if match else item.task
    else:
        phase, label = "map", f"producer {item.producer}"
    first, last, short = time.at(item.first), time.at(item.last), label.rpartition(" ")[2]
    return Bar(lane, phase, label, first, last, outcome, short, told)


def _attempt(stage: StageHistory, a: StoredAttempt) -> tuple[Outcome, str]:
    stored = size(a.stored_bytes)
    if a.fate == "uncommitted":
        return "lost", f"left without a COMMIT, {stored}"
    if a.fate == "superseded":
        return "again", f"written although a COMMIT stood, {stored}"
    later = [str(generation) for wall, generation in stage.uses[1:] if wall > a.last]
    if not later:
        return "done", f"committed, {stored}"
    drivers = f"driver{'' if len(later) == 1 else 's'} {', '.join(later)}"
    return "reused", f"committed; used again by {drivers}, {stored}"


def _appending(a: AppendingAttempt) -> tuple[Outcome, str]:
    outcome: Outcome = "done"
    told = f"ended with {a.end}" if a.end else "taken over by another attempt"
    if a.newest and (a.end is None or a.end == "SUSPEND"):
        outcome, told = "open", "suspended" if a.end else "open, may append more"
    wrote = f"{plural(a.appends, 'append')}, {plural(a.rows, 'row')}, {size(a.stored_bytes)}"
    return outcome, f"{told}, {wrote}"


def _view(view: ConsumerView, *, again: bool) -> tuple[Outcome, str]:
    outcome: Outcome = "retry" if again else "done"
    told = "read to the end" if view.finished else "gave the rest back"
    if view.newest and not view.finished:
        outcome, told = "open", "stopped" if view.released else "still reading, or gone"
    elif not (view.finished or view.released):
        told = "taken over by a later view; what it acknowledged counts"  # killed or told to stop
    return outcome, f"{told}, {plural(view.records, 'record')} in its log"


def job_page(history: JobHistory, storage: str) -> str:
    """Return the page.

    Args:
        storage: its description, without credentials.
    """
    line = job_timeline(history)
    reused = sum(max(0, len(stage.uses) - 1) for stage in history.stages)
    again = sum(stage.count("superseded") for stage in history.stages)
    left = sum(stage.left_bytes for stage in history.stages)
    stored = sum(stage.data_bytes for stage in history.stages)
    phases = {"map": "a producer", "reduce": "a consumer's view"}
    body = [
        heading(f"Job {history.job}", f"{storage}. {_span(history)}", None),
        tiles(
            [
                ("stages", str(len(history.stages)), f"{_counted(history.stages)}{size(stored)}"),
                ("reused stages", str(reused), f"{plural(len(history.drivers), 'driver')} in all"),
                ("committed work done again", str(again), "map tasks, counted from storage"),
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
        element("div", timeline_svg(line), legend([line], _OUTCOMES, phases), class_="card")
        if line.bars
        else element("p", "Nothing is stored yet."),
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
    moments = [wall for wall, _ in history.drivers]
    for stage in history.stages:
        moments += [t for a in stage.attempts for t in (a.first, a.last)]
        moments += [t for a in stage.appending for t in a.times]
        moments += [t for t, _, _ in stage.changes]
        moments += [t for t in (stage.created, stage.sealed) if t is not None]
    return moments + [t for view in history.views for t in view.times]


def _change(what: StageChange, producers: int) -> str:
    return _CHANGES[what] + (f": {producers} map tasks" if producers else "")


def _counted(stages: Sequence[StageHistory]) -> str:
    counts = Counter(stage.status.partition(",")[0] for stage in stages)
    return "".join(f"{count} {word}, " for word, count in counts.items())


def _span(history: JobHistory) -> str:
    moments = _moments(history)
    if not moments:
        return ""
    first, last = (datetime.fromtimestamp(t, UTC) for t in (min(moments), max(moments)))
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC."


def _stages(stages: Sequence[StageHistory]) -> Html:
    rows: list[dict[str, Any]] = []
    for number, s in enumerate(stages, 1):
        drivers = ", ".join(str(generation) for _, generation in s.uses)
        row: dict[str, Any] = {
            "stage": f"{number} {s.name}",
            "rows by": s.rows_by,
            "status": s.status,
            "drivers": drivers,
        }
        if s.ended is not None:
            row["appends"] = f"{s.appends:,}"
        else:
            again = s.count("superseded")
            row["map tasks stored"] = f"{s.count('counts')} of {s.producers or '?'}"
            row["uncommitted"] = str(s.count("uncommitted"))
            row["run again"] = Value(str(again), "bad" if again else "good")
        if s.ended is not None or s.sealed is not None:  # else the rows were not counted
            row |= {"rows": f"{s.rows:,}", "stored": size(s.data_bytes)}
        rows.append(row)
    logs = [s.ended is not None for s in stages]
    head = ["stage", "rows by", "status", "drivers"]
    head += [] if logs and all(logs) else ["map tasks stored", "uncommitted", "run again"]
    head += [*(["appends"] if any(logs) else []), "rows", "stored"]
    return table(head, [[row.get(name, "") for name in head] for row in rows], left=4)


def _consumers(history: JobHistory) -> Html:
    rows: list[list[Any]] = []
    for consumer in _consumers_of(history):
        views = [view for view in history.views if view.consumer == consumer]
        tasks = {view.task for view in views}
        finished = {view.task for view in views if view.finished}
        counts = [len(tasks), len(finished), len(views), len(views) - len(tasks)]
        records = sum(view.records for view in views)
        rows.append([consumer, *map(str, counts), f"{records:,}"])
    head = ["consumer", "tasks", "finished", "views", "resumed", "records in their logs"]
    return table(head, rows, left=1)
