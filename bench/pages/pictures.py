"""The drawings of a benchmark's page as PNG files, for documents that cannot hold a page.

Needs matplotlib (extra `bench`), without a display or a server.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from durable_shuffle.bench.pages.bars import PEER_COLOURS
from durable_shuffle.bench.workloads.faults import FAULTS
from durable_shuffle.jobs.reports.drawing import OUTCOME_COLOURS
from durable_shuffle.jobs.reports.timeline import OUTCOMES, Timeline, rows_of_lane

_FAULT = "#d11a3a"
_INK, _SOFT, _LANE = "#1c2127", "#5d6773", "#f3f5f7"
_WIDTH_INCHES = 10.0
_DPI = 150


def recovery_pictures(document: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what a failure cost, and the timelines of each fault, peers below each other.

    Returns:
        The files: `recovery-cost.png`, then `recovery-<workload>-<fault>.png`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hurt = [s for s in document["summary"] if s["fault"] != "F0"]
    made = [_cost(hurt, folder / "recovery-cost.png")]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in document["timelines"]:
        if entry["fault"] != "F0":
            groups.setdefault((entry["workload"], entry["fault"]), []).append(entry)
    for (workload, fault), entries in groups.items():
        path = folder / f"recovery-{workload}-{fault}.png"
        drawn = [(e["peer"], Timeline.from_dict(e)) for e in entries]
        made.append(_timelines(f"{workload} {fault}: {FAULTS[fault].title}", drawn, path))
    return made


def throughput_picture(document: dict[str, Any], path: Path) -> Path:
    """Draw the seconds of every workload and peer, with smallest and largest."""
    lines = document["lines"]
    figure = Figure(figsize=(_WIDTH_INCHES, 0.9 + 0.42 * len(lines)), layout="constrained")
    axes = figure.subplots()
    spread = [
        [x["seconds"] - x["least"] for x in lines],
        [x["most"] - x["seconds"] for x in lines],
    ]
    colours = [PEER_COLOURS[x["peer"]] for x in lines]
    seconds = [x["seconds"] for x in lines]
    axes.barh(range(len(lines)), seconds, color=colours, xerr=spread, ecolor=_SOFT, height=0.66)
    axes.set_yticks(range(len(lines)), [f"{x['workload']} {x['peer']}" for x in lines])
    for row, x in enumerate(lines):
        text = f"{x['seconds']:.1f} s, {x['mib_per_second']:.0f} MiB/s"
        axes.text(x["most"], row, f"  {text}", va="center", fontsize=9, color=_SOFT)
    axes.set_xlim(0, 1.28 * max(x["most"] for x in lines))
    _tidy(axes, "Whole job without a fault: median, smallest and largest seconds")
    axes.invert_yaxis()
    return _saved(figure, path)


def year_picture(figures: Sequence[tuple[int, int, int]], path: Path) -> Path:
    """Draw bytes, objects and requests to open a job after each night, below each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(_WIDTH_INCHES, 5.4), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    titles = "bytes on the storage", "objects on the storage", "requests to open the job"
    nights = range(1, len(figures) + 1)
    for part, title, values in zip(axes, titles, zip(*figures, strict=True), strict=True):
        part.plot(nights, values, color=PEER_COLOURS["durable"], linewidth=1.4)
        part.set_ylim(0, 1.25 * max(values))
        part.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _tidy(part, title)
    axes[-1].set_xlabel("night", fontsize=9, color=_SOFT)
    return _saved(figure, path)


def _cost(hurt: Sequence[dict[str, Any]], path: Path) -> Path:
    figure = Figure(figsize=(_WIDTH_INCHES, 1.2 + 0.34 * len(hurt)), layout="constrained")
    wrong = [s["records_twice"] + s["records_missing"] for s in hurt]
    axes = figure.subplots(1, 3 if any(wrong) else 2, sharey=True)
    left, right = axes[:2]
    rows = range(len(hurt))
    colours = [PEER_COLOURS[s["peer"]] for s in hurt]
    lost = [max(0.0, s["seconds_lost"]) for s in hurt]
    left.barh(rows, lost, color=colours, height=0.7)
    right.barh(rows, [s["maps_again"] for s in hurt], color=colours, height=0.7)
    left.set_yticks(rows, [f"{s['workload']} {s['fault']}  {s['peer']}" for s in hurt])
    for row, s in enumerate(hurt):
        told = f" {s['seconds_lost']:+.1f} s"
        left.text(lost[row], row, told, va="center", fontsize=9, color=_SOFT)
        told = f" {s['maps_again']:g} of {s['maps']}"
        right.text(s["maps_again"], row, told, va="center", fontsize=9, color=_SOFT)
    left.set_xlim(0, 1.25 * max([*lost, 0.1]))
    right.set_xlim(0, 1.25 * max([*(s["maps_again"] for s in hurt), 1]))
    _tidy(left, "Seconds lost per failure")
    _tidy(right, "Finished maps done once more")
    for last in axes[2:]:
        last.barh(rows, wrong, color=colours, height=0.7)
        for row, count in enumerate(wrong):
            last.text(count, row, f" {count:,}", va="center", fontsize=9, color=_SOFT)
        last.set_xlim(0, 1.35 * max(wrong))
        _tidy(last, "Records twice or missing")
    left.invert_yaxis()
    return _saved(figure, path)


def _timelines(title: str, drawn: Sequence[tuple[str, Timeline]], path: Path) -> Path:
    lanes = [
        [rows_of_lane([b for b in line.bars if b.lane == lane]) for lane in line.lanes]
        for _, line in drawn
    ]
    heights = [sum(max(1, len(rows)) for rows in found) + 1 for found in lanes]
    figure = Figure(figsize=(_WIDTH_INCHES, 1.3 + 0.32 * sum(heights)), layout="constrained")
    every = figure.subplots(len(drawn), 1, sharex=True, squeeze=False, height_ratios=heights)
    outcomes: set[str] = set()
    for axes, (peer, line), found in zip(every[:, 0], drawn, lanes, strict=True):
        y, ticks = 0.0, []
        for rows in found:
            height = max(1, len(rows))
            axes.axhspan(y - 0.46, y + height - 0.54, color=_LANE, zorder=0)
            ticks.append(y + (height - 1) / 2)
            for row in rows:
                for bar in row:
                    outcomes.add(bar.outcome)
                    lost = bar.outcome == "lost"
                    axes.barh(
                        y, max(bar.end - bar.start, line.seconds / 400), left=bar.start, height=0.7,
                        color=OUTCOME_COLOURS[bar.outcome],
                        alpha=0.35 if lost else 1.0 if bar.phase == "map" else 0.62,
                        edgecolor=_FAULT if lost else "white", linewidth=0.6, zorder=2,
                    )  # fmt: skip
                y += 1
            y += 0.25
        for mark in line.marks:
            fault = mark.kind == "fault"
            colour = _FAULT if fault else _SOFT
            axes.axvline(mark.at, color=colour, linestyle="--", linewidth=1.3, zorder=3)
            hit = line.lanes.index(mark.lane) if mark.lane in line.lanes else None
            if fault:
                at = ticks[hit] if hit is not None else y / 2 - 0.5
                axes.plot([mark.at], [at], "x", color=_FAULT, ms=9, mew=2.4, zorder=4)
        axes.set_yticks(ticks, line.lanes)
        _tidy(axes, f"{peer}: {line.took:.1f} s")
        axes.invert_yaxis()
    every[-1, 0].set_xlim(0, max(line.seconds for _, line in drawn))
    every[-1, 0].set_xlabel("seconds; pale: reduce tasks", color=_SOFT, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
    known = [o for o in OUTCOMES if o in outcomes]
    handles = [Patch(color=OUTCOME_COLOURS[o], label=OUTCOMES[o]) for o in known]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return _saved(figure, path)


def _tidy(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=_INK)
    axes.tick_params(length=0, labelsize=9, colors=_SOFT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#dfe3e8")


def _saved(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
    return path
