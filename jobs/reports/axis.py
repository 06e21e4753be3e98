"""The axis of a timeline: seconds from its start, or the time of day with its breaks. Pure."""

import math
from collections.abc import Iterator

from durable_shuffle.jobs.reports.drawn_time import clock_text, duration_text
from durable_shuffle.jobs.reports.timeline import Timeline

_APART = 84
"""Pixels between labels with a time of day, at least."""
_ROUND = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
"""Seconds between labels."""


def axis(
    timeline: Timeline, total: float, left: float, scale: float, span: tuple[float, float]
) -> str:
    """Return lines and labels.

    Args:
        total: seconds of the whole width.
        left: pixels of second 0.
        scale: pixels per second.
        span: pixels from the top to the bottom of the lanes.
    """
    top, bottom = span
    parts = []
    for at, text in _clock_ticks(timeline, scale) if timeline.spans else _ticks(total):
        x = left + at * scale
        anchor = "start" if timeline.spans and at == 0 else "middle"
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4:.1f}" '
            f'y2="{bottom + 4:.1f}"/>'
            f'<text class="dim" x="{x:.1f}" y="{bottom + 18:.1f}" font-size="11" '
            f'text-anchor="{anchor}">{text}</text>'
        )
    return "".join(parts)


def breaks(timeline: Timeline, left: float, scale: float, span: tuple[float, float]) -> str:
    """Return a mark with its length for each pause that is drawn shortened."""
    top, bottom = span
    parts = []
    for pause in timeline.pauses:
        x, told = left + pause.at * scale, duration_text(pause.seconds)
        slanted = "".join(
            f'<line class="break-line" x1="{x + shift - 3:.1f}" x2="{x + shift + 3:.1f}" '
            f'y1="{y + 6:.1f}" y2="{y - 6:.1f}"/>'
            for y in (bottom + 2, top - 2)
            for shift in (-3, 3)
        )
        parts.append(
            f'<g data-mark="break"><title>nothing happened for {told}: drawn shortened</title>'
            f'<rect class="break" x="{x - 4:.1f}" y="{top - 4:.1f}" width="8" '
            f'height="{bottom - top + 8:.1f}"/>{slanted}'
            f'<text class="dim" x="{x:.1f}" y="15" font-size="11" '
            f'text-anchor="middle">{told}</text></g>'
        )
    return "".join(parts)


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


def _step(least: float) -> float:
    found = next((float(n) for n in _ROUND if n >= least), None)
    if least < 1:
        return _nice(least)
    return found if found is not None else math.ceil(least / 86_400) * 86_400.0


def _nice(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= value)
