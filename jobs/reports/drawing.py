"""Timelines as inline SVG: text in, text out. Pure.

Colours come from style classes and `style.py`, so that one drawing reads on light and on dark.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Literal

from durable_shuffle.jobs.reports.axis import axis, breaks
from durable_shuffle.jobs.reports.drawn_time import clock_text, duration_text, wall_at
from durable_shuffle.jobs.reports.style import OUTCOME_COLOURS
from durable_shuffle.jobs.reports.timeline import (
    OUTCOMES,
    Bar,
    Mark,
    Outcome,
    Timeline,
    rows_of_lane,
)

_WIDTH, _LEFT, _RIGHT = 1000, 118, 16
_ROW, _GAP, _TOP, _BOTTOM = 17, 10, 40, 26
_BARE_TOP = 8
"""Where there is no mark to be named."""
_LEAST = 6.0
"""Pixels of the shortest bar."""
_LETTER = 6.2
"""Pixels of a letter on a bar, at most on average."""
_LANE_LETTERS = 15
Side = Literal["start", "end"]
"""Of a text: where its mark is."""
_NAME_ROOM = 64
"""Pixels that the name of a mark takes."""


def timeline_svg(timeline: Timeline, seconds: float | None = None) -> str:
    """Return the drawing, in a box that scrolls where it is too wide.

    Args:
        seconds: what the whole width stands for, default the timeline's own; equal for drawings
            that are to be compared.
    """
    total = max(seconds or timeline.seconds, 1e-6)
    scale = (_WIDTH - _LEFT - _RIGHT) / total
    lanes = [
        (lane, rows_of_lane([b for b in timeline.bars if b.lane == lane], (_LEAST + 1) / scale))
        for lane in timeline.lanes
    ]
    parts: list[str] = []
    tops: dict[str, tuple[float, float]] = {}
    named = timeline.pauses or any(m.kind in ("fault", "note") for m in timeline.marks)
    top = float(_TOP if named else _BARE_TOP)
    y = top
    for lane, rows in lanes:
        height = max(1, len(rows)) * _ROW + 4.0
        tops[lane] = (y, y + height)
        shown = lane if len(lane) <= _LANE_LETTERS else lane[: _LANE_LETTERS - 1] + "…"
        parts.append(
            f'<rect class="lane" x="{_LEFT}" y="{y:.1f}" width="{_WIDTH - _LEFT - _RIGHT}" '
            f'height="{height:.1f}" rx="4"/>'
            f'<text class="dim" x="{_LEFT - 8}" y="{y + height / 2 + 4:.1f}" font-size="12" '
            f'text-anchor="end"><title>{escape(lane)}</title>{escape(shown)}</text>'
        )
        for number, row in enumerate(rows):
            parts += [_bar(timeline, bar, y + 2 + number * _ROW, scale) for bar in row]
        y += height + _GAP
    bottom = y - _GAP
    grid = axis(timeline, total, _LEFT, scale, (top, bottom))
    cuts = breaks(timeline, _LEFT, scale, (top, bottom))
    marks, free = [], 0.0
    for mark in sorted(timeline.marks, key=lambda m: m.at):
        x = _LEFT + mark.at * scale
        if mark.kind == "fault":
            side: Side | None = "end" if x > _WIDTH * 0.6 else "start"
            marks.append(_mark(timeline, mark, x, bottom, tops, side))
        elif mark.kind == "note":
            side, free = _free_side(x, free)
            marks.append(_mark(timeline, mark, x, bottom, tops, side))
        elif mark.lane in tops:
            marks.append(_change(timeline, mark, x, tops[mark.lane]))
    height = bottom + _BOTTOM
    told = f"{timeline.title}: {timeline.took:.1f} seconds, {len(timeline.bars)} task attempts"
    return (
        f'<div class="scroll"><svg class="timeline" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(told)}">{grid}{"".join(parts)}{cuts}{"".join(marks)}</svg></div>'
    )


def _bar(timeline: Timeline, bar: Bar, y: float, scale: float) -> str:
    x, width = _LEFT + bar.start * scale, max(_LEAST, (bar.end - bar.start) * scale - 1)
    opacity = "" if bar.phase == "map" else ' fill-opacity="0.62"'
    lost = ' class="lost"' if bar.outcome == "lost" else opacity
    if timeline.spans:
        walls = [wall_at(timeline.spans, at) for at in (bar.start, bar.end)]
        took = duration_text(walls[1] - walls[0])
        times = f"{clock_text(walls[0], 1)} to {clock_text(walls[1], 1)} ({took})"
    else:
        times = f"{bar.start:.2f} to {bar.end:.2f} s"
    told = f"{bar.label}: {bar.told or OUTCOMES[bar.outcome]}, {times}"
    short = bar.short or bar.phase[0] + bar.label.rpartition(" ")[2]
    shown = next((t for t in (bar.label, short) if len(t) * _LETTER + 6 <= width), "")
    text = ""
    if shown:
        ink = "" if bar.outcome == "lost" else ' style="fill:#fff"'
        text = (
            f'<text x="{x + width / 2:.1f}" y="{y + _ROW - 5.5:.1f}" font-size="10.5" '
            f'text-anchor="middle"{ink}>{escape(shown)}</text>'
        )
    return (
        f'<g data-outcome="{bar.outcome}" data-phase="{escape(bar.phase)}">'
        f"<title>{escape(told)}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_ROW - 3}" rx="2.5" '
        f'fill="{OUTCOME_COLOURS[bar.outcome]}"{lost}/>{text}</g>'
    )


def _free_side(x: float, free: float) -> tuple[Side | None, float]:
    """Return where a mark's name has room, and up to where the row is taken from then on."""
    if x >= free and x + _NAME_ROOM <= _WIDTH:
        return "start", x + _NAME_ROOM
    if x - _NAME_ROOM >= free:
        return "end", x
    return None, free


def _mark(
    timeline: Timeline,
    mark: Mark,
    x: float,
    bottom: float,
    tops: dict[str, tuple[float, float]],
    side: Side | None,
) -> str:
    y = 15 if mark.kind == "fault" else 31
    text = ""
    if side is not None:
        text = (
            f'<text x="{x + (5 if side == "start" else -5):.1f}" y="{y}" font-size="12" '
            f'text-anchor="{side}" '
            f'class="{"fault-text" if mark.kind == "fault" else "dim"}">{escape(mark.text)}</text>'
        )
    line = (
        f'<line class="{mark.kind}-line" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 10}" '
        f'y2="{bottom:.1f}"/>'
    )
    cross = ""
    hit = tops.get(mark.lane) if mark.lane else None
    if mark.kind == "fault":
        low, high = hit or (_TOP, bottom)
        middle, r = (low + high) / 2, 6.5
        cross = "".join(
            f'<line class="kill" x1="{x - r:.1f}" x2="{x + r:.1f}" y1="{a:.1f}" y2="{b:.1f}"/>'
            for a, b in ((middle - r, middle + r), (middle + r, middle - r))
        )
    return _group(timeline, mark, line + cross + text)


def _change(timeline: Timeline, mark: Mark, x: float, lane: tuple[float, float]) -> str:
    y, r = lane[0] + 2 + (_ROW - 3) / 2, 6.0
    points = f"{x:.1f},{y - r:.1f} {x + r:.1f},{y:.1f} {x:.1f},{y + r:.1f} {x - r:.1f},{y:.1f}"
    return _group(timeline, mark, f'<polygon class="{mark.kind}" points="{points}"/>')


def _group(timeline: Timeline, mark: Mark, inner: str) -> str:
    when = f"{mark.at:.2f} s"
    if timeline.spans:
        when = clock_text(wall_at(timeline.spans, mark.at), 1)
    told = f"{mark.text}, at {when}" + (f", {mark.lane}" if mark.lane else "")
    return f'<g data-mark="{mark.kind}"><title>{escape(told)}</title>{inner}</g>'


_PHASES = {"map": "map task", "reduce": "reduce task"}
_MARKS = {
    "fault": "a failure",
    "note": "a driver takes the job up",
    "compact": "stage compacted",
    "replace": "stage repaired",
}


def legend(
    lines: Sequence[Timeline],
    texts: Mapping[Outcome, str] = OUTCOMES,
    phases: Mapping[str, str] = _PHASES,
) -> str:
    """Return what colours and marks of timelines mean, only those that occur.

    Args:
        texts: of all outcomes, in the order in which they are shown.
        phases: of "map" and "reduce", shown where there are both.
    """
    bars = [bar for line in lines for bar in line.bars]
    outcomes, found = {bar.outcome for bar in bars}, {bar.phase for bar in bars}
    entries = []
    for name, text in texts.items():
        if name in outcomes:
            faint = ";opacity:.45;outline:1px dashed var(--fault)" if name == "lost" else ""
            entries.append((f'style="background:{OUTCOME_COLOURS[name]}{faint}"', text))
    if len(found) > 1:
        colour = "background:#7b93ad"
        for phase, text in phases.items():
            pale = ";opacity:.62" if phase == "reduce" else ""
            entries.append((f'style="{colour}{pale}"', text + (", paler" if pale else "")))
    marks = {mark.kind for line in lines for mark in line.marks}
    entries += [(f'class="key-{kind}"', text) for kind, text in _MARKS.items() if kind in marks]
    if any(line.pauses for line in lines):
        entries.append(('class="key-break"', "a pause, drawn shortened"))
    spans = "".join(f"<span><i {how}></i>{escape(text)}</span>" for how, text in entries)
    return f'<div class="legend">{spans}</div>'
