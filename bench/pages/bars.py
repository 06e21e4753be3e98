"""Amounts as bars in HTML: text in, text out. Pure.

Colours and style classes are those of `jobs/reports/style.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from durable_shuffle.jobs.reports.style import PEER_COLOURS


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
