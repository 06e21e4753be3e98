"""A pipeline's own streams are given back: who holds data back, who does not, and the last word."""

from pathlib import Path
from typing import Any

import pytest
from one_source import in_folder
from operated import NAME
from pipeline_steps import Numbers, same
from pipelines import ROWS, copying, prefix_of_all, published, settings, threads, until
from steered import WAIT, Operated, each_once

from durable_shuffle.pipelines import Pipeline
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.release.gc_run import collect_garbage
from durable_shuffle.shuffle.storage.local import LocalStorage

OFTEN: dict[str, Any] = {"append_rows": 20, "release_seconds": 0.05}


def segments(folder: Path, job: str, stage: str = "numbers") -> int:
    """How many segments a stage has."""
    storage = LocalStorage(folder / "data")
    path = next(path for path in read_job(storage, job).order if path.name == stage)
    return sum(1 for _ in storage.list(open_stage(storage, path).path.segments_prefix))


@pytest.mark.requirement("R-MZ-16")
@pytest.mark.requirement("R-MZ-17")
def test_rows_that_all_have_committed_go_by_themselves(operated: Operated) -> None:
    """While it runs, over a restart, with a consumer that comes later and one that is left out."""
    operated.start({"copy": 1}, upto=400, **OFTEN)
    until(lambda: len(operated.rows("copy")) == 400, "all rows")
    until(lambda: not segments(operated.folder, NAME), "all segments are given back")
    before = operated.epochs
    operated.client.restart("copy")
    until(lambda: operated.epochs["copy-k0000"] > before["copy-k0000"], "the restart")
    operated.update({"copy": 1, "late": 1}, upto=800, **OFTEN)
    until(lambda: len(operated.rows("copy")) == 800, "all rows")
    until(lambda: not segments(operated.folder, NAME), "also with a consumer that came later")
    late = sorted(n for n, _ in operated.rows("late"))
    assert late == list(range(400, 800))

    operated.update({"copy": 1}, upto=1200, **OFTEN)
    until(lambda: len(operated.rows("copy")) == 1200, "all rows")
    until(lambda: operated.phase is JobPhase.RUNNING, "all run")
    assert segments(operated.folder, NAME), "a consumer that was left out may come back"
    assert operated.client.drop("late").text == "drops late"
    operated.update({"copy": 1}, upto=1220, **OFTEN)
    until(lambda: not segments(operated.folder, NAME), "nobody needs them any more")
    assert operated.end().phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))


def test_what_a_finished_pipeline_stored_is_given_back(tmp_path: Path) -> None:
    """Unless the settings say never."""
    for seconds in (0.0, 600.0):
        folder = tmp_path / str(seconds)
        pipeline = copying(folder, Numbers(1, 50), same, release_seconds=seconds)
        assert pipeline.run(launcher=threads).phase is JobPhase.FINISHED
        assert published(folder)
        assert prefix_of_all(published(folder), 1)
        assert bool(segments(folder, "copying")) is (seconds == 0)


def test_a_drop_of_what_never_was_is_refused(operated: Operated) -> None:
    """By name, with the names that there are; what was left out before can be dropped, twice."""
    operated.start({"copy": 1, "goes": 1})
    operated.more_rows("goes")
    with pytest.raises(InvalidInputError, match=r"no source .* 'goe'.*numbers, copy, goes"):
        operated.client.drop("goe")
    operated.update({"copy": 1})
    for _ in range(2):
        assert operated.client.drop("goes").text == "drops goes"
    rows = len(operated.rows("goes"))
    operated.update({"copy": 1, "goes": 2})
    operated.more_rows("copy")
    assert operated.end().phase is JobPhase.FINISHED
    assert len(operated.rows("goes")) == rows, "it is over for good"


def test_a_coordinator_that_ends_says_so(tmp_path: Path) -> None:
    """So that another one need not take over; one that is alive has not said it."""
    storage = LocalStorage(tmp_path / "data")
    running = copying(tmp_path, Numbers(1), same).start(launcher=threads)
    until(lambda: published(tmp_path), "rows")
    assert not read_job(storage, "copying").ended
    assert read_job(storage, "copying").by
    running.stop("SUSPEND")
    assert running.wait(WAIT).phase is JobPhase.SUSPENDED
    assert read_job(storage, "copying").ended
    again = copying(tmp_path, Numbers(1), same).start(launcher=threads)
    rows = published(tmp_path).total()
    until(lambda: published(tmp_path).total() > rows, "it goes on")
    assert not read_job(storage, "copying").ended
    again.stop("CANCEL")
    assert again.wait(WAIT).phase is JobPhase.CANCELED
    assert read_job(storage, "copying").ended


def collect(folder: Path) -> Any:
    return collect_garbage(
        LocalStorage(folder / "data"),
        "copying",
        ids=RandomIds(),
        clock=SystemClock(),
        settings=Settings(),
        older_than_seconds=0.0,
        delete=True,
    )


def test_gc_leaves_a_pipeline_alone_that_runs(tmp_path: Path) -> None:
    """It claims nothing, deletes what no log can name, spares the rest; after the end it claims."""
    running = copying(tmp_path, Numbers(1), same, max_restarts=0).start(launcher=threads)
    until(lambda: published(tmp_path), "rows")
    storage = LocalStorage(tmp_path / "data")
    before = read_job(storage, "copying")
    for _ in range(5):
        report = collect(tmp_path)
        assert report.beside
        assert report.deleted
        assert not report.generation
    assert read_job(storage, "copying").generation == before.generation
    rows = published(tmp_path).total()
    until(lambda: published(tmp_path).total() > rows, "more rows")
    running.stop("DRAIN")
    result = running.wait(WAIT)
    assert (result.phase, result.restarts) == (JobPhase.FINISHED, 0)
    assert prefix_of_all(published(tmp_path), 1)
    assert collect(tmp_path).generation == before.generation + 1


def slots(folder: Path, job: str, stage: str) -> list[int]:
    """Which slots of a producer's log are there."""
    storage = LocalStorage(folder / "data")
    path = next(path for path in read_job(storage, job).order if path.name == stage)
    return sorted(open_stage(storage, path).producer_log(0).listed())


def test_records_of_rows_that_went_go_too(tmp_path: Path) -> None:
    """All but OPENs and what the source's position names; over suspensions no file comes twice."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    written = 0

    def more(files: int) -> None:
        nonlocal written
        for _ in range(files):
            in_folder(inbox, f"{written:05d}.json", [written])
            written += 1

    def made() -> Pipeline:
        pipeline = Pipeline(
            "watching",
            str(tmp_path / "data"),
            settings=settings(append_rows=1, release_seconds=0.05),
        )
        source = FolderSource(str(inbox), "json", ROWS)
        stream = pipeline.source("files", source, schema=ROWS, key="n", partitions=2)
        stream.consume("copy", same, schema=ROWS, sink=FileSink(str(tmp_path / "out"), "json"))
        return pipeline

    for start in range(3):
        running = made().start(launcher=threads)
        for _ in range(2):
            more(30)
            until(lambda: published(tmp_path).total() == written, "all rows")
        kept = slots(tmp_path, "watching", "files")

        def gone() -> bool:  # a record goes one release after its rows, so it takes more rows
            more(1)
            until(lambda: published(tmp_path).total() == written, "all rows")
            return len(slots(tmp_path, "watching", "files")) < 30

        until(gone, "records go")
        running.stop("SUSPEND" if start < 2 else "DRAIN")
        running.wait(WAIT)
        assert max(kept) >= 60 * (start + 1), "slots, kept ones or not"
    assert sorted(published(tmp_path)) == list(range(written))
    assert set(published(tmp_path).values()) == {1}
