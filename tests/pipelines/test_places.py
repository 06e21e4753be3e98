"""A part's place may change between attempts; what was committed for the old place stays whole."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from one_consumer import OneConsumer, Plain

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.plan.sinks import CallbackSink, FileSink, Parked, Sink


def sink_in(one: OneConsumer, folder: str) -> FileSink:
    return FileSink(str(one.folder / folder), "json")


def rows_in(folder: Path) -> Counter[int]:
    files = folder.glob("part-*.json")
    return Counter(json.loads(x)["n"] for f in files for x in f.read_text().splitlines())


def cause(reports: list[TaskReport]) -> str:
    assert reports[-1].phase is TaskPhase.FAILED
    assert reports[-1].failure is not None
    assert not reports[-1].failure.retry
    return f"{reports[-1].failure.kind}: {reports[-1].failure.text}"


@pytest.mark.requirement("R-F46-14")
@pytest.mark.requirement("R-MZ-10")
def test_a_sink_may_move_after_a_suspend(one: OneConsumer) -> None:
    """The last commit is published and settled: nothing of it is looked for in the new folder."""
    one.write(3)
    assert one.attempt(Plain([]), orders=[StopMode.SUSPEND])[-1].phase is TaskPhase.SUSPENDED
    one.write(4, end="FINITE")
    last = one.attempt(Plain([]), sink=sink_in(one, "moved"))[-1]
    assert last.phase is TaskPhase.FINISHED
    assert rows_in(one.folder / "out") == Counter(range(3))
    assert rows_in(one.folder / "moved") == Counter(range(3, 7))


class Away(FileSink):
    """Cannot publish."""

    def publish(self, parked: Parked) -> None:
        raise OSError("killed here")


@pytest.mark.requirement("R-F46-14")
@pytest.mark.parametrize("kind", ["folder", "callback"])
def test_rows_of_another_sink_are_not_lost_and_not_looked_for(one: OneConsumer, kind: str) -> None:
    """Behind a crash the old sink is named; with it back, every row is there once."""
    one.write(4, end="FINITE")
    away = Away(str(one.folder / "out"), "json")
    assert one.attempt(Plain([]), sink=away)[-1].phase is TaskPhase.FAILED
    calls: list[pa.Table] = []
    callback = CallbackSink(lambda _, table: calls.append(table))
    other: Sink = sink_in(one, "moved") if kind == "folder" else callback
    said = cause(one.attempt(Plain([]), sink=other))
    assert said.startswith("incompatible: ")
    assert f"FileSink('{one.folder / 'out'}')" in said
    assert "put that sink back" in said
    assert not calls
    assert one.attempt(Plain([]))[-1].phase is TaskPhase.FINISHED
    one.check_all_published_once()


def test_a_sink_names_its_place_without_credentials() -> None:
    """What is stored with parked rows can be shown."""
    place = FileSink("s3://me:secret@bucket/out/", "json").place
    assert place == "FileSink('s3://***@bucket/out')"
    assert FileSink("out").place == FileSink(str(Path.cwd() / "out")).place


@pytest.mark.requirement("R-ARR-21")
def test_two_pipelines_share_no_folder(tmp_path: Path) -> None:
    """The second one is refused before it reads, so no row of the first, or of it, is touched."""
    pipelines = [OneConsumer(tmp_path / name) for name in ("a", "b")]
    shared: Any = FileSink(str(tmp_path / "shared"), "json")
    for one in pipelines:
        one.write(4, end="FINITE")
    first, second = pipelines
    away = Away(shared.url, "json")
    assert first.attempt(Plain([]), sink=away)[-1].phase is TaskPhase.FAILED
    parked = sorted((tmp_path / "shared" / "_parked").rglob("*"))
    log: list[str] = []
    said = cause(second.attempt(Plain(log), sink=shared))
    assert "folder of its own" in said
    assert log == [], "it took no row"
    assert sorted((tmp_path / "shared" / "_parked").rglob("*")) == parked
    for one, sink in ((first, shared), (second, second.sink)):
        assert one.attempt(Plain([]), sink=sink)[-1].phase is TaskPhase.FINISHED
    second.check_all_published_once()
    assert rows_in(tmp_path / "shared") == Counter(range(4))
