"""Timelines as inline SVG: values in, markup out. Pure.

Colours come from style classes and `page.css`, so that one drawing reads on light and on dark.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from durable_shuffle.jobs.reports.page import Html, element
from durable_shuffle.jobs.reports.timeline import (
    OUTCOMES,
    Bar,
    Mark,
    Outcome,
    Timeline,
    clock_text,
    duration_text,
    rows_of_lane,
    wall_at,
)

OUTCOME_COLOURS = {
    "done": "#7b93ad",
    "reused": "#0d9488",
    "again": "#e0523d",
    "retry": "#e3a33b",
    "open": "#5b7fd6",
    "lost": "#9aa0a8",
}
"""Readable on white and on near-black alike; pictures use them too."""

_WIDTH, _LEFT, _RIGHT = 1000, 118, 16
_ROW, _GAP, _TOP, _BOTTOM = 17, 10, 40, 26
_BARE_TOP = 8
"""Where there is no mark to be named."""
_SHORTEST_BAR = 6.0
"""Pixels."""
_LETTER = 6.2
"""Pixels of a letter on a bar, at most on average."""
_LANE_LETTERS = 15
_NAME_ROOM = 64
"""Pixels that the name of a mark takes."""
_APART = 84
"""Pixels between labels with a time of day, at least."""
_ROUND = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
"""Seconds between labels."""


Side = Literal["start", "end"]
"""At which end of a text its mark is."""
Heights = tuple[float, float]
"""Pixels from the top to the bottom."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Where the lanes of a drawing are, in pixels."""

    left: float
    """Of second 0."""
    scale: float
    """Per second."""
    top: float
    bottom: float

    def x(self, seconds: float) -> float:
        """Return where a moment is."""
        return self.left + seconds * self.scale


def timeline_svg(timeline: Timeline, seconds: float | None = None) -> Html:
    """Return the drawing, in a box that scrolls where it is too wide.

    Args:
        seconds: what the whole width stands for, default the timeline's own; equal for drawings
            that are to be compared.
    """
    total = max(seconds or timeline.seconds, 1e-6)
    scale = (_WIDTH - _LEFT - _RIGHT) / total
    named = timeline.pauses or any(mark.kind in ("fault", "note") for mark in timeline.marks)
    top = y = float(_TOP if named else _BARE_TOP)
    parts: list[Html] = []
    lanes: dict[str | None, Heights] = {}
    for lane in timeline.lanes:
        bars = [bar for bar in timeline.bars if bar.lane == lane]
        rows = rows_of_lane(bars, (_SHORTEST_BAR + 1) / scale)
        height = max(1, len(rows)) * _ROW + 4.0
        lanes[lane] = (y, y + height)
        parts += _lane(lane, y, height)
        for number, row in enumerate(rows):
            parts += [_bar(timeline, bar, y + 2 + number * _ROW, scale) for bar in row]
        y += height + _GAP
    frame = Plot(_LEFT, scale, top, y - _GAP)
    told = f"{timeline.title}: {timeline.took:.1f} seconds, {len(timeline.bars)} task attempts"
    drawing = element(
        "svg",
        *axis(timeline, total, frame),
        *parts,
        *breaks(timeline, frame),
        *_marks(timeline, frame, lanes),
        class_="timeline",
        viewBox=f"0 0 {_WIDTH} {frame.bottom + _BOTTOM:.0f}",
        role="img",
        aria_label=told,
    )
    return element("div", drawing, class_="scroll")


def axis(timeline: Timeline, total: float, frame: Plot) -> Iterator[Html]:
    """Yield lines and labels: round times of day, or seconds from the start up to `total`."""
    clock = bool(timeline.spans)
    for seconds, text in _clock_ticks(timeline, frame.scale) if clock else _ticks(total):
        x = frame.x(seconds)
        yield _line("grid", x, x, frame.top - 4, frame.bottom + 4)
        yield _text(x, frame.bottom + 18, "start" if clock and seconds == 0 else "middle", 11, text)


def breaks(timeline: Timeline, frame: Plot) -> Iterator[Html]:
    """Yield a mark with its length for each pause that is drawn shortened."""
    top, bottom = frame.top, frame.bottom
    for pause in timeline.pauses:
        x, told = frame.x(pause.at), duration_text(pause.seconds)
        yield element(
            "g",
            element("title", f"nothing happened for {told}: drawn shortened"),
            element("rect", class_="break", x=x - 4, y=top - 4, width=8, height=bottom - top + 8),
            *(
                _line("break-line", x + shift - 3, x + shift + 3, y + 6, y - 6)
                for y in (bottom + 2, top - 2)
                for shift in (-3, 3)
            ),
            _text(x, 15, "middle", 11, told),
            data_mark="break",
        )


def _line(style: str, x1: float, x2: float, y1: float, y2: float) -> Html:
    return element("line", class_=style, x1=x1, x2=x2, y1=y1, y2=y2)


def _text(
    x: float, y: float, anchor: str, size: float, *inside: str, style: str | None = "dim"
) -> Html:
    return element("text", *inside, class_=style, x=x, y=y, font_size=size, text_anchor=anchor)


def _lane(lane: str, y: float, height: float) -> Iterator[Html]:
    width = _WIDTH - _LEFT - _RIGHT
    yield element("rect", class_="lane", x=_LEFT, y=y, width=width, height=height, rx=4)
    shown = lane if len(lane) <= _LANE_LETTERS else lane[: _LANE_LETTERS - 1] + "…"
    yield _text(_LEFT - 8, y + height / 2 + 4, "end", 12, element("title", lane), shown)


def _bar(timeline: Timeline, bar: Bar, y: float, scale: float) -> Html:
    x, width = _LEFT + bar.start * scale, max(_SHORTEST_BAR, (bar.end - bar.start) * scale - 1)
    times = f"{bar.start:.2f} to {bar.end:.2f} s"
    if timeline.spans:
        first, last = (wall_at(timeline.spans, seconds) for seconds in (bar.start, bar.end))
        times = f"{clock_text(first, 1)} to {clock_text(last, 1)} ({duration_text(last - first)})"
    lost, pale = bar.outcome == "lost", bar.phase != "map"
    drawn = [
        element("title", f"{bar.label}: {bar.told or OUTCOMES[bar.outcome]}, {times}"),
        element(
            "rect", x=x, y=y, width=width, height=_ROW - 3, rx=2.5,
            fill=OUTCOME_COLOURS[bar.outcome], class_="lost" if lost else None,
            fill_opacity="0.62" if pale and not lost else None,
        ),
    ]  # fmt: skip
    short = bar.short or bar.phase[0] + bar.label.rpartition(" ")[2]
    shown = next((t for t in (bar.label, short) if len(t) * _LETTER + 6 <= width), "")
    if shown:
        style, middle = None if lost else "on-bar", x + width / 2
        drawn.append(_text(middle, y + _ROW - 5.5, "middle", 10.5, shown, style=style))
    return element("g", *drawn, data_outcome=bar.outcome, data_phase=bar.phase)


def _marks(timeline: Timeline, frame: Plot, lanes: Mapping[str | None, Heights]) -> Iterator[Html]:
    free = 0.0
    for mark in sorted(timeline.marks, key=lambda mark: mark.at):
        x, lane = frame.x(mark.at), lanes.get(mark.lane)
        side: Side | None
        if mark.kind == "fault":
            side = "end" if x > _WIDTH * 0.6 else "start"
            drawn = [
                *_named_line(mark, x, 15, frame, side),
                *_cross(x, lane or (_TOP, frame.bottom)),
            ]
        elif mark.kind == "note":
            side, free = _free_side(x, free)
            drawn = _named_line(mark, x, 31, frame, side)
        elif lane is not None:
            y, r = lane[0] + 2 + (_ROW - 3) / 2, 6.0
            corners = ((x, y - r), (x + r, y), (x, y + r), (x - r, y))
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
            drawn = [element("polygon", class_=mark.kind, points=points)]
        else:
            continue
        when = f"{mark.at:.2f} s"
        if timeline.spans:
            when = clock_text(wall_at(timeline.spans, mark.at), 1)
        told = f"{mark.text}, at {when}" + (f", {mark.lane}" if mark.lane else "")
        yield element("g", element("title", told), *drawn, data_mark=mark.kind)


def _free_side(x: float, free: float) -> tuple[Side | None, float]:
    """Return where a mark's name has room, and up to where the row is taken from then on."""
    if x >= free and x + _NAME_ROOM <= _WIDTH:
        return "start", x + _NAME_ROOM
    if x - _NAME_ROOM >= free:
        return "end", x
    return None, free


def _named_line(mark: Mark, x: float, y: float, frame: Plot, side: Side | None) -> list[Html]:
    """Return a line through all lanes, with its name at the top where there is room."""
    parts = [_line(f"{mark.kind}-line", x, x, y - 10, frame.bottom)]
    if side is not None:
        style = "fault-text" if mark.kind == "fault" else "dim"
        parts.append(_text(x + (5 if side == "start" else -5), y, side, 12, mark.text, style=style))
    return parts


def _cross(x: float, span: Heights) -> list[Html]:
    y, r = sum(span) / 2, 6.5
    return [_line("kill", x - r, x + r, y - r, y + r), _line("kill", x - r, x + r, y + r, y - r)]


def _ticks(total: float) -> Iterator[tuple[float, str]]:
    step = _nice(total / 8)
    for number in range(int(total / step + 1e-9) + 1):
        yield number * step, f"{number * step:g} s"


def _clock_ticks(timeline: Timeline, scale: float) -> Iterator[tuple[float, str]]:
    """Yield round times of day, and where each stretch between two breaks begins."""
    step = _step(_APART / scale)
    decimals = max(0, min(3, -math.floor(math.log10(step)))) if step < 1 else 0
    free = -math.inf
    for span in timeline.spans:
        if span.start * scale >= free:
            yield span.start, clock_text(span.wall, decimals)
            free = span.start * scale + _APART * (1.3 if span.start == 0 else 1)
        wall = math.ceil(span.wall / step) * step
        while wall - span.wall <= span.end - span.start:
            at = span.start + wall - span.wall
            if at * scale >= free:
                yield at, clock_text(wall + 1e-6, decimals)
                free = at * scale + _APART
            wall += step


def _step(minimum: float) -> float:
    if minimum < 1:
        return _nice(minimum)
    days = math.ceil(minimum / 86_400) * 86_400
    return float(next((seconds for seconds in _ROUND if seconds >= minimum), days))


def _nice(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= value)


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
) -> Html:
    """Return the meaning of the colours and marks that occur in timelines.

    Args:
        texts: of all outcomes, in the order in which they are shown.
        phases: of "map" and "reduce", shown where there are both.
    """
    bars = [bar for line in lines for bar in line.bars]
    outcomes, drawn_phases = {bar.outcome for bar in bars}, {bar.phase for bar in bars}
    entries: list[tuple[dict[str, str], str]] = []
    for name, text in texts.items():
        if name in outcomes:
            faint = ";opacity:.45;outline:1px dashed var(--fault)" if name == "lost" else ""
            entries.append(({"style": f"background:{OUTCOME_COLOURS[name]}{faint}"}, text))
    if len(drawn_phases) > 1:
        for phase, text in phases.items():
            pale = ";opacity:.62" if phase == "reduce" else ""
            swatch = {"style": f"background:{OUTCOME_COLOURS['done']}{pale}"}
            entries.append((swatch, text + (", paler" if pale else "")))
    marks = {mark.kind for line in lines for mark in line.marks}
    entries += [({"class": f"key-{k}"}, text) for k, text in _MARKS.items() if k in marks]
    if any(line.pauses for line in lines):
        entries.append(({"class": "key-break"}, "a pause, drawn shortened"))
    spans = [element("span", element("i", **swatch), text) for swatch, text in entries]
    return element("div", *spans, class_="legend")
