"""From task lines to what ran again, what was reused, and the drawing of it."""

import itertools
from collections.abc import Iterable
from typing import Any

from durable_shuffle.bench.matrix.task_history import (
    Span,
    again,
    as_committed,
    attempts_of,
    moved,
    outcomes,
    timeline,
)
from durable_shuffle.jobs.reports.timeline import Timeline, rows_of_lane


def lines_of(
    attempts: Iterable[tuple[str, int, int, float, float | None]], run: int = 1
) -> list[dict[str, Any]]:
    """Lines of attempts given as (phase, partition, host, start, end or None)."""
    lines = []
    for number, (phase, partition, host, start, end) in enumerate(attempts):
        line = {
            "attempt": f"{run}-{number}", "phase": phase, "partition": partition, "run": run,
            "rows_in": 0, "rows_out": 0, "bytes_in": 0, "bytes_out": 0,
        }  # fmt: skip
        lines.append({**line, "event": "start", "at": start, "host": host})
        lines.append({**line, "event": "moved", "at": start + 0.5, "bytes_out": 60})
        if end is not None:
            lines.append({**line, "event": "end", "at": end, "bytes_out": 100})
    return lines


def test_a_killed_executor() -> None:
    """Map 0 was on the victim and ran again, map 1 was used, reduce 0 died and was done later."""
    attempts = attempts_of(
        lines_of(
            [
                ("map", 0, 11, 100.0, 101.0),
                ("map", 1, 12, 100.0, 101.0),
                ("reduce", 0, 11, 101.5, None),
                ("map", 0, 12, 103.0, 104.0),
                ("reduce", 0, 12, 104.0, 105.0),
            ]
        )
    )
    assert again(attempts, "map") == 1
    assert again(attempts, "reduce") == 0
    assert moved(attempts, "map") == 300
    found = dict(zip([(a.task, a.start) for a in attempts], outcomes(attempts, 102.0), strict=True))
    assert found[("map", 0), 100.0] == "done"
    assert found[("map", 1), 100.0] == "reused"
    assert found[("reduce", 0), 101.5] == "lost"
    assert found[("map", 0), 103.0] == "again"
    assert found[("reduce", 0), 104.0] == "retry"
    drawn = timeline(
        "t", attempts, [Span(100.0, 5.0)], fault_at=102.0, fault="SIGKILL", victims=[11]
    )
    (lost,) = [bar for bar in drawn.bars if bar.outcome == "lost"]
    assert (lost.start, lost.end) == (1.5, 2.0)  # it died with its executor, not at its last line
    (mark,) = drawn.marks
    assert (mark.at, mark.lane) == (2.0, lost.lane)
    assert Timeline.from_dict(drawn.to_dict()) == drawn


def test_only_a_commit_is_an_end_of_a_durable_map() -> None:
    """One died between work and COMMIT, one lost to a twin: neither was done twice."""
    lines = [
        ("map", 0, 11, 100.0, 101.0),  # killed before its COMMIT
        ("map", 1, 11, 100.0, 104.0),  # ended behind its twin's COMMIT
        ("map", 1, 12, 101.0, 102.0),
        ("map", 0, 12, 103.0, 104.0),
        ("map", 2, 12, 103.0, 104.0),
        ("map", 2, 12, 105.0, 106.0),  # began although the COMMIT stood
    ]
    attempts = attempts_of(lines_of(lines))
    assert again(attempts, "map") == 2
    committed = as_committed(attempts, {0: 104.01, 1: 102.01, 2: 104.01})
    assert again(committed, "map") == 1
    assert [a.ended for a in committed if a.partition == 0] == [False, True]
    assert [a.ended for a in committed if a.partition == 1] == [False, True]
    assert outcomes(committed, None).count("again") == 1


def test_a_killed_driver() -> None:
    """The second run stands behind the first, after a short gap instead of the real pause."""
    first = lines_of([("map", 0, 11, 100.0, 101.0), ("map", 1, 12, 100.5, None)])
    second = lines_of([("map", 1, 21, 500.0, 501.0)], run=2)
    attempts = attempts_of(first + second)
    spans = [Span(100.0, 2.0), Span(500.0, 3.0)]
    drawn = timeline("t", attempts, spans, fault_at=102.0, fault="SIGKILL", victims=[9])
    assert [bar.outcome for bar in drawn.bars] == ["reused", "lost", "retry"]
    assert drawn.bars[1].end == 2.0
    assert drawn.bars[2].start > 2.0
    assert drawn.bars[2].end == drawn.bars[2].start + 1.0
    assert (drawn.took, drawn.seconds < 6.0) == (5.0, True)
    assert [mark.kind for mark in drawn.marks] == ["fault", "note"]
    assert len(drawn.lanes) == 3


def test_bars_of_a_lane_do_not_overlap() -> None:
    """Attempts at the same time stand in rows of their own."""
    attempts = attempts_of(
        lines_of([("map", n, 1, float(start), start + 2.0) for n, start in enumerate((0, 1, 2, 4))])
    )
    drawn = timeline("t", attempts, [Span(0.0, 6.0)], fault_at=None, fault="", victims=[])
    rows = rows_of_lane(drawn.bars)
    assert [len(row) for row in rows] == [3, 1]
    for row in rows:
        assert all(a.end <= b.start for a, b in itertools.pairwise(row))
