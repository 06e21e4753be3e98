"""Reports of stages that log producers write, and of those who read them."""

import json
import os
import random
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from browser import open_page
from small_log import SCHEMA, numbered_rows
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.jobs.reports.job_history import JobHistory, read_history
from durable_shuffle.jobs.reports.job_page import job_page, job_timeline
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer

BEGAN = 1_700_000_000.0
PRODUCERS = 3


class Stream:
    """A stage of three log producers, whose objects get the times that the test wants."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.ids = root, SeededIds(random.Random(seed))
        self.storage = LocalStorage(root)
        job = JobLog.claim(self.storage, "flow", self.ids.new_id())
        self.stage: StageHandle = new_stage(
            self.storage, self.ids, SCHEMA, partitions=1, producers=PRODUCERS, writing="log",
            job="flow",
        )  # fmt: skip
        path = self.stage.path
        use = StageUse(self.ids.new_id(), 1, path.name, path.fingerprint, path.incarnation)
        job.append(use)
        self._told: set[Path] = set()

    def at(self, seconds: float) -> None:
        """What was written since the last call was written then."""
        for file in self.root.rglob("*"):
            if file.is_file() and file not in self._told:
                self._told.add(file)
                os.utime(file, (BEGAN + seconds, BEGAN + seconds))

    def open(self, producer: int) -> LogProducer:
        return LogProducer.open(
            self.stage, producer, record_id=self.ids.new_id(), generation=1, settings=SMALL
        )

    def history(self) -> JobHistory:
        return read_history(self.storage, "flow")


@pytest.fixture
def stream(tmp_path: Path, seed: int) -> Stream:
    """Producer 0 was taken over and ended, 1 appends, 2 never opened; 17 rows in 4 APPENDs."""
    found = Stream(tmp_path, seed)
    found.at(2)
    with found.open(0) as first:
        found.at(3)
        for n in (0, 5):
            first.append(numbered_rows(n, n + 5, 1), b"%d" % n)
            found.at(4 + n)
    with found.open(0) as second:
        found.at(10)
        second.append(numbered_rows(10, 14, 1), b"14")
        second.end("FINITE")
        found.at(11)
    with found.open(1) as other:
        found.at(12)
        other.append(numbered_rows(100, 103, 1), b"3")
        found.at(13)
    return found


def test_what_was_appended_and_when(stream: Stream) -> None:
    """Appends, rows and bytes; attempts from first to last APPEND; the stage is open until all its
    producers ended."""
    (stage,) = stream.history().stages
    assert stage.status == "open, 1 of 3 producers ended"
    assert (stage.appends, stage.rows, stage.created) == (4, 17, BEGAN + 2)
    assert stage.data_bytes == sum(p.stat().st_size for p in stream.root.rglob("*.seg"))
    shown = [(a.producer, a.first - BEGAN, a.last - BEGAN, a.rows) for a in stage.appending]
    assert shown == [(0, 4, 9, 10), (0, 11, 11, 4), (1, 13, 13, 3)]
    for producer in (1, 2):
        with stream.open(producer) as last:
            last.end("DRAIN")
    (stage,) = stream.history().stages
    assert stage.status == "ended, 3 of 3 producers ended"


def test_a_reader_at_work_is_not_dead(stream: Stream) -> None:
    """A view that was neither ended nor followed by another is still reading."""
    with open_view(stream.stage, 0, consumer="reader", follow_seconds=300) as view:
        for _ in zip(range(2), view, strict=False):
            view.ack()
        stream.at(14)
        line = job_timeline(stream.history())
    assert [b.outcome for b in line.bars if b.lane == "reader"] == ["open"]
    assert [b.outcome for b in line.bars if b.lane != "reader"] == ["done", "done", "open"]
    assert line.spans[0].wall == BEGAN + 2, "it begins with the stage, not with the first append"


def test_the_page(stream: Stream, run: Callable[..., Any]) -> None:
    """A browser shows wall-clock times, what is open in a colour of its own, and no failure."""
    with open_view(stream.stage, 0, consumer="reader", task="window-7", follow_seconds=300) as view:
        next(iter(view))
        view.ack()
        stream.at(90)
    page = stream.root.parent / f"{stream.root.name}.html"
    assert run("report", stream.root, "flow", "--html", page).exit_code == 0
    opened = open_page(page)
    assert opened.complaints == []
    assert sorted(re.findall(r'data-outcome="(\w+)"', opened.dom)) == [
        "done",
        "done",
        "open",
        "open",
    ]
    titles = [unescape(title) for title in re.findall(r"<title>(.*?)</title>", opened.dom)]
    assert (
        "producer 0: taken over by another attempt, 2 appends, 10 rows, "
        f"{_bytes(stream, 0)}, 22:13:24.0 to 22:13:29.0 (5.0 s)"
    ) in titles
    assert any(title.startswith("window-7: ") for title in titles)
    assert "nothing happened for 77 s: drawn shortened" in titles
    assert "`" not in opened.dom
    assert "died" not in opened.dom
    assert "before the failure" not in opened.dom
    assert "without an end" not in opened.dom, "the legend shows what occurs"
    assert "<th>status</th>" in opened.dom


def _bytes(stream: Stream, attempt: int) -> str:
    size = stream.history().stages[0].appending[attempt].stored_bytes
    return f"{size} B" if size < 1024 else f"{size / 1024:.1f} KiB"


def test_as_text(stream: Stream, run: Callable[..., Any]) -> None:
    """One line says what the stage holds; one driver is no plural."""
    first, line = run("report", stream.root, "flow").stdout.splitlines()
    assert first == "job flow: 1 driver, 1 stage"
    assert line.startswith("stage, hash by k: 4 appends, 17 rows, ")
    assert line.endswith(", open, 1 of 3 producers ended, driver 1")
    (stage,) = json.loads(run("report", f"{stream.root}/flow", "--json").stdout)["stages"]
    assert stage["ended"] == 1
    assert [a["appends"] for a in stage["appending"]] == [2, 1, 1]


def test_left_over_bytes(stream: Stream) -> None:
    """Of attempts that are over; one that appends may still name its segment. The page names the
    clean-up only where there is something to clean up."""
    path = stream.stage.path
    other = stream.history().stages[0].appending[-1]
    assert other.end is None
    (segment,) = stream.root.rglob(f"p{other.producer:06d}-*.seg")
    attempt = segment.name.split("-")[1]
    stream.storage.put(path.segment_key(other.producer, attempt, 9), [b"on its way"])
    assert "durable-shuffle gc" not in job_page(stream.history(), "here")
    stream.storage.put(path.segment_key(0, "c" * 32, 0), [b"left behind"])
    assert stream.history().stages[0].left_bytes == 11
    assert "durable-shuffle gc" in job_page(stream.history(), "here")


def test_a_view_that_was_taken_over_is_not_called_dead(stream: Stream) -> None:
    """Killed or told to stop: its log does not tell, and what it acknowledged counts."""
    for seconds in (14, 16):
        view = open_view(stream.stage, 0, consumer="reader", follow_seconds=300)
        next(iter(view))
        view.ack()
        stream.at(seconds)
    bars = [b for b in job_timeline(stream.history()).bars if b.lane == "reader"]
    assert [b.outcome for b in bars] == ["done", "open"]
    assert bars[0].told.startswith("taken over by a later view")
