"""A job stored without Spark, and the command line to look at it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result
from stored_job import stored_stage
from typer.testing import CliRunner

from durable_shuffle.jobs.cli.app import app
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.local import LocalStorage

Run = Callable[..., Result]
DAY = 86_400


@dataclass(frozen=True)
class Job:
    """A job with three stages: orders (old), lines sealed, lines unsealed."""

    url: str
    log: JobLog
    orders: StageHandle
    lines: StageHandle
    unsealed: StageHandle

    def files(self) -> set[str]:
        return {p.relative_to(self.url).as_posix() for p in Path(self.url).rglob("*.seg")}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Rows per producer: 3000, 0 and 1500; partition 4 of 5 stays empty."""
    storage = LocalStorage(tmp_path)
    now = SystemClock().wall()
    log = JobLog.claim(storage, "nightly", RandomIds().new_id())
    settings = Settings(writer_memory_bytes=65_536, frame_bytes=4096)

    def stage(name: str, fingerprint: str, age: float, **how: object) -> StageHandle:
        return stored_stage(
            log,
            storage,
            job="nightly",
            name=name,
            fingerprint=fingerprint * 32,
            created_wall_seconds=now - age,
            settings=settings,
            rows=(3000, 0, 1500),
            **how,
        )

    return Job(
        str(tmp_path),
        log,
        stage("orders", "0", 8 * DAY),
        stage("lines", "a", 0),
        stage("lines", "b", 0, seal=False, commit=(1, 2)),
    )


@pytest.fixture
def run() -> Run:
    """Run a command; a traceback on either stream fails the test."""

    def call(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert "Traceback" not in result.output
        return result

    return call
