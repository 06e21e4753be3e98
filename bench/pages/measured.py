"""What a page says about how its figures were made, and how to add a system. Pure."""

from collections.abc import Sequence
from typing import Any

from durable_shuffle.bench.peers import systems
from durable_shuffle.jobs.reports.page import Html, Value, element, joined, section, table

_RULER = (
    "Every system does the same job: the same rows from a seed, the same map and reduce functions, "
    "2 executors or worker processes with one core each on one machine, systems in turn. The "
    "tasks themselves write down when they start, end and move rows, so all systems are measured "
    "by the same ruler. A fault happens when so many tasks have ended; the others wait for it. "
    "Every row of every answer is compared with DuckDB's. Services that a user has running must "
    "show, by their own count of bytes, that the rows went through them. Counts depend on the "
    "system and the schedule; seconds on this machine and what else it does."
)


_BEYOND = (
    "Spark's, beyond those of all sessions here. Sessions for F10 also have speculation, those for "
    "F11 spark.decommission.enabled."
)
_AS_TYPED = "white-space:pre-wrap;overflow-wrap:anywhere"


def how_measured(peers: Sequence[dict[str, Any]]) -> list[Html]:
    """Return the sections; entries are those of the document."""
    rows = [[p["name"], *(Value(p[n], "wrap") for n in ("title", "versions"))] for p in peers]
    settings = [_settings(p["name"], p["settings"]) for p in peers if p["settings"]]
    told = (systems.__doc__ or "").partition("How to add a system:")[2].strip()
    return [
        section("How it was measured", _RULER),
        section("Systems"),
        table(["", "what it is", "versions"], rows, left=3),
        section("Settings", _BEYOND) if settings else Html(),
        *settings,
        section("How to add a system", "In the file bench/peers/systems.py of the source:"),
        element("div", told, class_="card mono", style=_AS_TYPED),
    ]


def _settings(name: str, settings: dict[str, str]) -> Html:
    lines = "\n".join(f"{key}={value}" for key, value in settings.items())
    shown = element("div", lines, class_="card mono", style=_AS_TYPED)
    return joined([element("h3", name), shown])
