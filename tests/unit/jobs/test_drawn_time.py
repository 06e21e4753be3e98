"""Drawings with shortened pauses tell true times; texts in pages stay texts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.jobs.reports.drawing import Plot, axis, breaks
from durable_shuffle.jobs.reports.page import (
    Value,
    code,
    element,
    heading,
    page,
    section,
    table,
    tiles,
)
from durable_shuffle.jobs.reports.timeline import (
    Bar,
    DrawnTime,
    Timeline,
    clock_text,
    duration_text,
    rows_of_lane,
    wall_at,
)

BEGAN = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""
walls = st.lists(st.integers(0, 10**7).map(lambda n: BEGAN + n / 16), min_size=1, max_size=40)


@given(walls)
def test_every_moment_keeps_its_order_and_its_time(found: list[float]) -> None:
    """Places rise with time; what a place is read back as is the moment; no pause gets lost."""
    time, moments = DrawnTime(found), sorted(set(found))
    places = [time.at(wall) for wall in moments]
    assert places[0] == 0
    assert all(a < b for a, b in pairwise(places))
    for wall, place in zip(moments, places, strict=True):
        assert wall_at(time.spans, place) == pytest.approx(wall, abs=1e-3)
    cut = sum(p.seconds for p in time.pauses)
    drawn = sum(s.end - s.start for s in time.spans)
    assert cut + drawn == pytest.approx(moments[-1] - moments[0], abs=1e-3)
    assert len(time.spans) == len(time.pauses) + 1


def timeline(time: DrawnTime) -> Timeline:
    return Timeline("t", time.seconds, time.took, (), (), (), time.spans, time.pauses)


def test_the_axis_shows_the_time_of_day_and_each_break() -> None:
    """Work at second 0 to 4 and 76 to 80: labels are wall-clock times, the break says 72 s."""
    time = DrawnTime(BEGAN + n for n in (0, 1, 2, 3, 4, 76, 77, 78, 79, 80))
    line = timeline(time)
    (pause,) = line.pauses
    assert pause.seconds == 72
    frame = Plot(0, 1000 / time.seconds, 0, 100)
    drawn = "".join(axis(line, time.seconds, frame))
    assert ">22:13:20<" in drawn
    assert ">22:14:36<" in drawn
    assert " s<" not in drawn
    assert ">72 s<" in "".join(breaks(line, frame))


def test_seconds_without_times_of_day() -> None:
    """A run that only knows seconds from its start has those on its axis, and no break."""
    line = Timeline("t", 8.0, 8.0, (), ())
    frame = Plot(0, 100, 0, 100)
    assert ">5 s<" in "".join(axis(line, 8.0, frame))
    assert list(breaks(line, frame)) == []


def test_short_bars_do_not_overlap() -> None:
    """Bars shorter than the least width go into rows as if they had it."""
    bars = [Bar("a", "map", f"m {n}", n * 0.1, n * 0.1, "done") for n in range(4)]
    assert len(rows_of_lane(bars)) == 1
    assert [len(row) for row in rows_of_lane(bars, 0.15)] == [2, 2]


def test_only_html_is_markup() -> None:
    """A script in a title, cell, list, attribute or body is text, wherever a page takes texts."""
    evil = '<script>"&'
    parts = [
        heading(evil, evil, [evil]),
        tiles([(evil, evil, evil)]),
        section(evil, evil),
        table([evil, evil], [[evil, Value(evil, "bad")]], left=1),
        code(evil),
        element("p", class_=evil),
        evil,
    ]
    whole = page(evil, parts)
    assert "<script" not in whole
    assert whole.count("&lt;script&gt;&quot;&amp;") == 1 + 3 + 3 + 2 + 4 + 1 + 1 + 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (72, "72 s"), (150, "2.5 min"), (7200, "2 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_fractions_are_cut() -> None:
    assert clock_text(BEGAN + 0.96) == "22:13:20"
    assert clock_text(BEGAN + 0.96875, 1) == "22:13:20.9"
