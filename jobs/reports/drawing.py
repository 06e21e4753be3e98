"""Timelines as inline SVG and bars as HTML: text in, text out. Pure.

Colours come from style classes and `style.py`, so that one drawing reads on light and on dark.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from durable_shuffle.jobs.reports.style import OUTCOME_COLOURS, PEER_COLOURS
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
_SHORT = 26
"""Pixels: a bar narrower than this has its number only as a tooltip."""


def timeline_svg(timeline: Timeline, seconds: float | None = None) -> str:
    """Return the drawing.

    Args:
        seconds: what the whole width stands for, default the timeline's own; equal for drawings
            that are to be compared.
    """
    total = max(seconds or timeline.seconds, 1e-6)
    scale = (_WIDTH - _LEFT - _RIGHT) / total
    lanes = [
        (lane, rows_of_lane([b for b in timeline.bars if b.lane == lane]))
        for lane in timeline.lanes
    ]
    parts: list[str] = []
    tops: dict[str, tuple[float, float]] = {}
    top = float(_TOP if timeline.marks else _BARE_TOP)
    y = top
    for lane, rows in lanes:
        height = max(1, len(rows)) * _ROW + 4.0
        tops[lane] = (y, y + height)
        parts.append(
            f'<rect class="lane" x="{_LEFT}" y="{y:.1f}" width="{_WIDTH - _LEFT - _RIGHT}" '
            f'height="{height:.1f}" rx="4"/>'
            f'<text class="dim" x="{_LEFT - 8}" y="{y + height / 2 + 4:.1f}" font-size="12" '
            f'text-anchor="end">{escape(lane)}</text>'
        )
        for number, row in enumerate(rows):
            parts += [_bar(bar, y + 2 + number * _ROW, scale) for bar in row]
        y += height + _GAP
    bottom = y - _GAP
    axis = _axis(total, scale, top, bottom)
    marks = [_mark(mark, scale, bottom, tops) for mark in timeline.marks]
    height = bottom + _BOTTOM
    told = f"{timeline.title}: {timeline.took:.1f} seconds, {len(timeline.bars)} task attempts"
    return (
        f'<svg class="timeline" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(told)}">{axis}{"".join(parts)}{"".join(marks)}</svg>'
    )


def _bar(bar: Bar, y: float, scale: float) -> str:
    x, width = _LEFT + bar.start * scale, max(1.5, (bar.end - bar.start) * scale - 1)
    opacity = "" if bar.phase == "map" else ' fill-opacity="0.62"'
    lost = ' class="lost"' if bar.outcome == "lost" else opacity
    told = f"{bar.label}: {OUTCOMES[bar.outcome]}, {bar.start:.2f} to {bar.end:.2f} s"
    number = bar.label.rpartition(" ")[2]
    text = ""
    if width >= _SHORT:
        ink = "" if bar.outcome == "lost" else ' style="fill:#fff"'
        text = (
            f'<text x="{x + width / 2:.1f}" y="{y + _ROW - 5.5:.1f}" font-size="10.5" '
            f'text-anchor="middle"{ink}>{escape(bar.phase[0] + number)}</text>'
        )
    return (
        f'<g data-outcome="{bar.outcome}" data-phase="{escape(bar.phase)}">'
        f"<title>{escape(told)}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_ROW - 3}" rx="2.5" '
        f'fill="{OUTCOME_COLOURS[bar.outcome]}"{lost}/>{text}</g>'
    )


def _mark(mark: Mark, scale: float, bottom: float, tops: dict[str, tuple[float, float]]) -> str:
    x = _LEFT + mark.at * scale
    right = x > _WIDTH * 0.6
    anchor, shift = ("end", -5) if right else ("start", 5)
    y = 15 if mark.kind == "fault" else 31
    text = (
        f'<text x="{x + shift:.1f}" y="{y}" font-size="12" text-anchor="{anchor}" '
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
    told = f"{mark.text}, at {mark.at:.2f} s" + (f", {mark.lane}" if mark.lane else "")
    return f'<g data-mark="{mark.kind}"><title>{escape(told)}</title>{line}{cross}{text}</g>'


def _axis(total: float, scale: float, top: float, bottom: float) -> str:
    step = _nice(total / 8)
    parts = []
    for number in range(int(total / step + 1e-9) + 1):
        x = _LEFT + number * step * scale
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4:.1f}" '
            f'y2="{bottom + 4:.1f}"/>'
            f'<text class="dim" x="{x:.1f}" y="{bottom + 18:.1f}" font-size="11" '
            f'text-anchor="middle">{number * step:g} s</text>'
        )
    return "".join(parts)


def _nice(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= value)


def legend(
    outcomes: Iterable[str],
    texts: Mapping[Outcome, str] = OUTCOMES,
    more: str = "m0: map task 0; r0, paler: reduce task 0",
) -> str:
    """Return what the colours of a timeline mean, only those that occur.

    Args:
        texts: of all outcomes, in the order in which they are shown.
        more: a sentence behind them.
    """
    wanted = set(outcomes)
    entries = []
    for name, text in texts.items():
        if name in wanted:
            faint = ";opacity:.45;outline:1px dashed var(--fault)" if name == "lost" else ""
            colour = f"background:{OUTCOME_COLOURS[name]}{faint}"
            entries.append(f'<span><i style="{colour}"></i>{escape(text)}</span>')
    entries.append(f"<span>{escape(more)}</span>")
    return f'<div class="legend">{"".join(entries)}</div>'


@dataclass(frozen=True, slots=True)
class Amount:
    """One bar of a chart."""

    who: str
    value: float
    text: str


def bar_chart(groups: Sequence[tuple[str, Sequence[Amount]]]) -> str:
    """Return horizontal bars, all on one scale; a value below 0 is drawn as 0."""
    most = max((a.value for _, amounts in groups for a in amounts), default=0.0)
    parts = []
    for title, amounts in groups:
        parts.append(f'<div class="group">{escape(title)}</div>')
        for amount in amounts:
            share = 78 * max(0.0, amount.value) / most if most > 0 else 0
            colour = PEER_COLOURS.get(amount.who, "#7b93ad")
            parts.append(
                f'<div class="who">{escape(amount.who)}</div><div class="track">'
                f'<div class="bar" style="width:{share:.1f}%;background:{colour}"></div>'
                f'<div class="number">{escape(amount.text)}</div></div>'
            )
    return f'<div class="card chart">{"".join(parts)}</div>'
