"""Amounts as bars in HTML: text in, text out. Pure.

Colours and style classes are those of `jobs/reports/page.css`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from durable_shuffle.bench.peers.systems import PEERS
from durable_shuffle.jobs.reports.page import Html, element

PEER_COLOURS = {name: peer.colour for name, peer in PEERS.items()}


@dataclass(frozen=True, slots=True)
class Amount:
    """One bar of a chart."""

    who: str
    value: float
    text: str


def bar_chart(groups: Sequence[tuple[str, Sequence[Amount]]]) -> Html:
    """Return horizontal bars, all on one scale; a value below 0 is drawn as 0."""
    most = max((a.value for _, amounts in groups for a in amounts), default=0.0)
    parts = []
    for title, amounts in groups:
        parts.append(element("div", title, class_="group"))
        for amount in amounts:
            share = 78 * max(0.0, amount.value) / most if most > 0 else 0
            colour = PEER_COLOURS.get(amount.who, "#7b93ad")
            bar = element("div", class_="bar", style=f"width:{share:.1f}%;background:{colour}")
            number = element("div", amount.text, class_="number")
            parts.append(element("div", amount.who, class_="who"))
            parts.append(element("div", bar, number, class_="track"))
    return element("div", *parts, class_="card chart")
