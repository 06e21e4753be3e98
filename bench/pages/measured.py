"""What a page says about how its figures were made, and how to add a system. Pure."""

from collections.abc import Sequence
from typing import Any

from durable_shuffle.bench.peers import systems
from durable_shuffle.jobs.reports.page import Html, code, element, section, table

_RULER = (
    "Every system does the same job: the same rows from a seed, the same map and reduce functions, "
    "2 executors or worker processes with one core each on one machine, one after the other. The "
    "tasks themselves write down when they start, end and move rows, so all systems are measured "
    "by the same ruler. A fault happens when so many tasks have ended; the others wait for it. "
    "Every row of every answer is compared with DuckDB's. Services that a user has running must "
    "show, by their own count of bytes, that the rows went through them. Counts depend on the "
    "system and the schedule; seconds on this machine and what else it does."
)


def how_measured(peers: Sequence[dict[str, Any]]) -> list[Html]:
    """Return the sections; entries are those of the document."""
    rows = [
        [
            peer["name"],
            peer["title"],
            peer["versions"],
            _settings(peer.get("settings", {})),
        ]
        for peer in peers
    ]
    told = (systems.__doc__ or "").partition("How to add a system:")[2].strip()
    return [
        section("How it was measured", _RULER),
        section("Systems", "Settings beyond those of all Spark sessions here."),
        table(["", "what it is", "versions", "settings"], rows, left=4),
        section("How to add a system", "In the file bench/peers/systems.py of the source:"),
        element("div", told, class_="card mono", style="white-space:pre-wrap"),
    ]


def _settings(settings: dict[str, str]) -> Html:
    lines = [element("div", code(f"{name}={value}")) for name, value in settings.items()]
    return element("div", *lines) if lines else Html("")
