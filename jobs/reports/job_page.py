"""The page of a user's own job: who stored what when, and which work was used again. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from durable_shuffle.jobs.cli.text import size
from durable_shuffle.jobs.reports.drawing import legend, timeline_svg
from durable_shuffle.jobs.reports.job_history import JobHistory, StageHistory
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

_OUTCOMES: dict[Outcome, str] = {
    "done": "counts",
    "reused": "counts, and a later driver took the stage up",
    "retry": "resumed",
    "again": "written although a COMMIT stood",
    "lost": "left without a COMMIT, or without an end",
}
_LONG_PAUSE = 0.25
"""Share of the whole: a pause without any event longer than this is drawn shortened."""


def job_timeline(history: JobHistory) -> Timeline:
    """Return one lane per stage and per consumer; long pauses between drivers are shortened."""
    clock = _Clock(_moments(history))
    lanes: list[str] = []
    bars: list[Bar] = []
    for number, stage in enumerate(history.stages, 1):
        lane = _lane(number, stage.name)
        lanes.append(lane)
        for a in stage.attempts:
            start, end = clock.at(a.first), clock.at(a.last)
            outcome = _outcome(stage, a.last, a.fate)
            bars.append(Bar(lane, "map", f"producer {a.producer}", start, end, outcome))
    for consumer in dict.fromkeys(view.consumer for view in history.views):
        lanes.append(consumer)
        seen: set[str] = set()
        for view in history.views:
            if view.consumer == consumer:
                done: Outcome = "retry" if view.task in seen else "done"
                seen.add(view.task)
                partition = view.task.rpartition("-k")[2].lstrip("0") or "0"
                bars.append(
                    Bar(
                        consumer,
                        "reduce",
                        f"partition {partition}",
                        clock.at(view.first),
                        clock.at(view.last),
                        done if view.finished else "lost",
                    )
                )
    marks = [
        Mark(clock.at(at), f"driver {generation}", kind="note")
        for at, generation in history.drivers
    ]
    seconds = clock.seconds
    return Timeline(history.job, seconds, seconds, tuple(lanes), tuple(bars), tuple(marks))


def job_page(history: JobHistory, storage: str) -> str:
    """Return the page.

    Args:
        storage: its description, without credentials.
    """
    line = job_timeline(history)
    attempts = [a for stage in history.stages for a in stage.attempts]
    reused = sum(max(0, len(stage.uses) - 1) for stage in history.stages)
    again = sum(a.fate == "superseded" for a in attempts)
    left = sum(a.stored_bytes for a in attempts if a.fate != "counts")
    sealed = sum(stage.sealed is not None for stage in history.stages)
    stored = sum(stage.data_bytes for stage in history.stages)
    key = legend((b.outcome for b in line.bars), _OUTCOMES, "paler: a consumer's view")
    body = [
        heading(f"Job {history.job}", f"{storage}. {_span(history)}", None),
        tiles(
            [
                ("stages sealed", f"{sealed} of {len(history.stages)}", size(stored) or ""),
                ("stages taken up by a later driver", str(reused), _drivers(history)),
                ("committed producers run again", str(again), "counted from storage"),
                ("bytes of attempts that do not count", size(left) or "", "`gc` removes them"),
            ]
        ),
        section(
            "When output was stored",
            "Times are the storage's own. A producer's attempt is seen from its first stored "
            "segment to its COMMIT, a consumer's view from its OPEN to its last acknowledgement. "
            "Long pauses are drawn shortened; hover over a bar for details.",
        ),
        f'<div class="card">{timeline_svg(line)}{key}</div>'
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


class _Clock:
    """Turns wall seconds into seconds from the start, with long pauses shortened."""

    def __init__(self, moments: Sequence[float]) -> None:
        self._moments = sorted(set(moments)) or [0.0]
        gaps = [b - a for a, b in zip(self._moments, self._moments[1:], strict=False)]
        busy = sorted(gaps)[: max(1, len(gaps) * 9 // 10)]
        longest = max(1.0, 4 * _LONG_PAUSE * sum(busy))
        self._places = [0.0]
        for gap in gaps:
            self._places.append(self._places[-1] + min(gap, longest))

    @property
    def seconds(self) -> float:
        return max(self._places[-1], 0.1)

    def at(self, wall: float) -> float:
        """`wall` is one of the moments."""
        return self._places[self._moments.index(wall)]


def _moments(history: JobHistory) -> list[float]:
    found = [at for at, _ in history.drivers]
    for stage in history.stages:
        found += [t for a in stage.attempts for t in (a.first, a.last)]
    return found + [t for view in history.views for t in (view.first, view.last)]


def _outcome(stage: StageHistory, last: float, fate: str) -> Outcome:
    if fate == "uncommitted":
        return "lost"
    if fate == "superseded":
        return "again"
    later = any(at > last for at, _ in stage.uses[1:])
    return "reused" if later else "done"


def _lane(number: int, name: str) -> str:
    short = name if len(name) <= 14 else name[:13] + "…"
    return f"{number} {short}"


def _drivers(history: JobHistory) -> str:
    count = len(history.drivers)
    return f"{count} driver{'' if count == 1 else 's'} in all"


def _span(history: JobHistory) -> str:
    moments = _moments(history)
    if not moments:
        return ""
    first, last = (datetime.fromtimestamp(t, UTC) for t in (min(moments), max(moments)))
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC."


def _stages(stages: Sequence[StageHistory]) -> str:
    rows: list[list[Any]] = []
    for number, s in enumerate(stages, 1):
        counts = sum(a.fate == "counts" for a in s.attempts)
        again = sum(a.fate == "superseded" for a in s.attempts)
        rows.append(
            [
                _lane(number, s.name),
                "sealed" if s.sealed else "not sealed",
                ", ".join(str(generation) for _, generation in s.uses),
                f"{counts} of {s.producers or '?'}",
                str(sum(a.fate == "uncommitted" for a in s.attempts)),
                Value(str(again), "bad" if again else "good"),
                f"{s.rows:,}",
                size(s.data_bytes),
            ]
        )
    head = ["stage", "", "drivers", "committed", "uncommitted", "run again", "rows", "stored"]
    return table(head, rows, left=3)


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
