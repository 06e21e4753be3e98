"""User code that does not return, or fails twice: noticed, started again, with the first cause."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_steps import ROWS, Numbers
from pipelines import copying, prefix_of_all, published, settings, threads, until

from durable_shuffle.recovery.job.phases import JobPhase, JobResult
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sinks import CallbackSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.running import RunningPipeline

WAIT = 300.0
UPTO = 300
SHORT: dict[str, Any] = {
    "start_seconds": 60,
    "start_tries": 3,
    "stop_seconds": 2.0,
    "progress_seconds": 0.2,
}
"""`close()` may take 0.2 s, and so may a batch."""


class Once:
    """A step of this process, shared by all attempts: hangs at one call, the first time."""

    def __init__(self, where: str, error: Exception | None = None) -> None:
        self.where, self.error = where, error
        self.hangs, self.goes_on = threading.Event(), threading.Event()
        self.left = threading.Event()

    def __deepcopy__(self, _: Any) -> "Once":
        return self

    def _hang(self, where: str) -> None:
        if self.where != where or self.hangs.is_set():
            return
        self.hangs.set()
        self.goes_on.wait(WAIT)
        self.left.set()

    def process(self, batch: Any) -> Any:
        self._hang("process")
        if self.error is not None and not self.hangs.is_set() and 50 in batch[0].to_pylist():
            raise self.error
        return batch

    def snapshot(self) -> bytes:
        self._hang("snapshot")
        return b""

    def restore(self, _: bytes) -> None: ...

    def close(self) -> None:
        self._hang("close")


def _result(running: RunningPipeline, step: Once) -> JobResult:
    try:
        return running.wait(WAIT)
    finally:
        step.goes_on.set()


@pytest.mark.requirement("R-ARR-16")
@pytest.mark.requirement("R-ARR-3")
@pytest.mark.parametrize("wakes", [False, True])
@pytest.mark.parametrize("where", ["process", "snapshot", "close"])
def test_a_call_that_hangs_is_noticed(
    tmp_path: Path, where: str, wakes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task starts again, and every row is there once, also if the call returns after all."""
    step = Once(where, OSError("connection lost") if where == "close" else None)
    running = copying(tmp_path, Numbers(1, UPTO), step, partitions=1, **SHORT).start(
        launcher=threads
    )
    until(step.hangs.is_set, "the hang")
    if wakes:
        until(lambda: published(tmp_path)[UPTO // 2], "its successor's rows")
        step.goes_on.set()
        until(step.left.is_set, "its return")
    result = _result(running, step)
    assert result.phase is JobPhase.FINISHED
    assert result.restarts == 1
    assert published(tmp_path).total() == UPTO
    assert prefix_of_all(published(tmp_path), 1)
    name = {"snapshot": "a commit"}.get(where, f"{where}()")
    assert f"{name} did not return within 0.2 s" in caplog.text
    assert ("OSError: connection lost" in caplog.text) == (where == "close")


@pytest.mark.requirement("R-ARR-16")
def test_the_cause_of_a_failure_whose_close_hangs(tmp_path: Path) -> None:
    """Where no restart can help: the job ends, by the error."""
    broken = OSError("no such table")
    broken.retry = False  # type: ignore[attr-defined]
    step = Once("close", broken)
    running = copying(tmp_path, Numbers(1), step, partitions=1, **SHORT).start(launcher=threads)
    result = _result(running, step)
    assert result.phase is JobPhase.FAILED
    assert result.cause is not None
    assert result.cause.text.startswith("no such table")


@pytest.mark.parametrize("mode", ["SUSPEND", "CANCEL", "DRAIN"])
def test_a_stop_whose_close_hangs(tmp_path: Path, mode: str) -> None:
    """It ends, and a later run goes on."""
    step = Once("close")
    more = SHORT | {"progress_seconds": 0.0}
    running = copying(tmp_path, Numbers(1), step, partitions=1, **more).start(launcher=threads)
    until(lambda: running.phase is JobPhase.RUNNING and published(tmp_path), "rows")
    running.stop(mode)
    until(step.hangs.is_set, "the hang")
    ends = {"SUSPEND": "suspended", "CANCEL": "canceled", "DRAIN": "finished"}
    assert _result(running, step).phase == ends[mode]
    if mode != "DRAIN":
        again = copying(tmp_path, Numbers(1, UPTO), step, partitions=1).start(launcher=threads)
        assert again.wait(WAIT).phase is JobPhase.FINISHED
        assert published(tmp_path).total() >= UPTO
    assert prefix_of_all(published(tmp_path), 1)


def test_a_sink_that_hangs_is_noticed(tmp_path: Path) -> None:
    """Its token comes again, with the same rows."""
    hangs, goes_on = threading.Event(), threading.Event()
    rows: dict[str, list[int]] = {}

    def call(token: str, table: Any) -> None:
        if not hangs.is_set():
            hangs.set()
            goes_on.wait(WAIT)
            return
        rows[token] = table["n"].to_pylist()

    class Shared(CallbackSink):
        def __deepcopy__(self, _: Any) -> "Shared":
            return self

    pipeline = Pipeline("calling", str(tmp_path / "data"), settings=settings(**SHORT))
    numbers = pipeline.source("numbers", IteratorSource(Numbers(1, UPTO)), schema=ROWS)
    numbers.consume("call", lambda batch: batch, schema=ROWS, sink=Shared(call))
    running = pipeline.start(launcher=threads)
    result = running.wait(WAIT)
    goes_on.set()
    assert result.phase is JobPhase.FINISHED
    assert sorted(n for ns in rows.values() for n in ns) == list(range(UPTO))


class Fails:
    """An iterator that fails once, and whose `close` fails, too."""

    failed = 0

    def __init__(self, start: int) -> None:
        self.n = start

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.n >= UPTO:
            raise StopIteration
        if self.n >= 100 and not Fails.failed:
            Fails.failed += 1
            raise OSError("the broker is gone")
        self.n += 1
        return [{"n": self.n - 1}], self.n

    def close(self) -> None:
        if Fails.failed == 1:
            Fails.failed += 1
            raise OSError("not connected")


@pytest.mark.requirement("R-ARR-16")
def test_a_source_that_fails_twice_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its iterator, and the iterator's `close`: the first error is reported, and it goes on."""
    monkeypatch.setattr(Fails, "failed", 0)

    def make(position: Any, producer: int) -> Fails:
        return Fails(position or 0)

    running = copying(tmp_path, make, lambda batch: batch).start(launcher=threads)
    result = running.wait(WAIT)
    assert result.phase is JobPhase.FINISHED
    assert result.restarts == 1
    assert Fails.failed == 2
    assert "OSError: the broker is gone" in caplog.text
    assert published(tmp_path).total() == UPTO


class Clinging(IteratorSource):
    """A source whose `close` hangs the first time."""

    hangs = threading.Event()
    goes_on = threading.Event()

    def close(self) -> None:
        if not self.hangs.is_set():
            self.hangs.set()
            self.goes_on.wait(WAIT)


def test_a_source_whose_close_hangs_at_its_end(tmp_path: Path) -> None:
    """Its rows are stored: the next attempt finds its end."""
    pipeline = Pipeline("clinging", str(tmp_path / "data"), settings=settings(**SHORT))
    numbers = pipeline.source("numbers", Clinging(Numbers(1, UPTO)), schema=ROWS)
    seen: list[int] = []
    numbers.consume("see", lambda batch: seen.extend(batch[0].to_pylist()))
    result = pipeline.start(launcher=threads).wait(WAIT)
    Clinging.goes_on.set()
    assert result.phase is JobPhase.FINISHED
    assert sorted(set(seen)) == list(range(UPTO))
