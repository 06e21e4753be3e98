"""A job log that is damaged or ends too early: what verify says, what --repair does, and that a
driver refuses to compute again what is stored."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from durable_shuffle.bench.sessions import sessionize
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.recovery.resume import Fresh, Reuse
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.layout import job_log_prefix
from durable_shuffle.shuffle.log.named_stage import named_stage
from durable_shuffle.shuffle.log.records import STAGE_RECORDS
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

Run = Callable[..., Any]


def slots_of(job: Any) -> list[Path]:
    """Files of the job's log; slot 0 is CLAIM, then the STAGE records of three stages."""
    return sorted(Path(job.url, "nightly", "log").iterdir())


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def verified(job: Any, run: Run, *options: str) -> tuple[int, dict[str, Any]]:
    result = run("verify", job.url, "nightly", "--json", *options)
    return result.exit_code, json.loads(result.stdout)["jobs"][0]


@pytest.mark.parametrize("slot", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["a flipped bit", "lost"])
def test_a_damaged_job_log_is_written_again(job: Any, run: Run, slot: int, how: str) -> None:
    """Whatever slot it was: the job has all its stages again in their order, by name and
    fingerprint, and everything that refused before works."""
    before = read_job(LocalStorage(job.url), "nightly").order
    path = slots_of(job)[slot]
    if how == "lost":
        path.unlink()
    else:
        damaged(path)
        assert run("release", job.url, "nightly", "orders", "--yes").exit_code != 0
    assert verified(job, run)[0] == 1
    status, document = verified(job, run, "--repair")
    assert status == 0, document["findings"]
    assert set(document["log_repair"]["slots"]) <= {slot}
    assert read_job(LocalStorage(job.url), "nightly").order == before
    assert named_stage(job.url, "nightly", "orders").path == job.orders.path
    status, document = verified(job, run, "--repair")
    assert (status, document["log_repair"]["slots"]) == (0, [])
    assert run("release", job.url, "nightly", "orders", "--yes").exit_code == 0
    assert run("gc", job.url, "nightly").exit_code == 0


def test_a_lost_release_is_entered_again(job: Any, run: Run) -> None:
    """The stage's own log says that it was released: it is not made live again."""
    storage, ids = LocalStorage(job.url), RandomIds()
    release_stage_of(job.log, storage, job.orders.path, ids)
    slots_of(job)[-1].unlink()
    assert job.orders.path in read_job(storage, "nightly").order
    status, document = verified(job, run, "--repair")
    assert status == 0
    assert document["log_repair"]["stages_released"] == [job.orders.path.folder]
    assert job.orders.path in read_job(storage, "nightly").released


def test_a_lost_tail_is_found_by_verify(job: Any, run: Run) -> None:
    """The last STAGE record is gone, which no hole shows; the stage's folder proves it."""
    slots_of(job)[-1].unlink()
    status, document = verified(job, run)
    assert status == 1
    (finding,) = [f for f in document["findings"] if "STAGE record" in f["expected"]]
    assert finding["key"] == "nightly/log/"
    assert job.unsealed.path.prefix in finding["expected"]
    assert "verify --repair" in finding["found"]


def test_a_record_that_stands_twice_is_found(job: Any, run: Run) -> None:
    """A CLAIM that was written into another slot, too."""
    log = SlotLog(LocalStorage(job.url), job_log_prefix("nightly"))
    first = log.read(0)
    assert first is not None
    log.append(4, first)
    status, document = verified(job, run)
    assert status == 1
    assert [f["key"] for f in document["findings"]] == [log.key(4)]


class Named:
    """Work that was never begun."""

    name = "lines"


def test_a_driver_does_not_compute_again_what_the_log_lost(job: Any, run: Run) -> None:
    """It says so, and goes on if it is told to, or once the log was repaired; a stage that was
    never stored is made as always, by one listing per driver."""
    storage, ids = LocalStorage(job.url), RandomIds()
    slots_of(job)[2].unlink()  # and what comes behind it
    slots_of(job)[2].unlink()
    log = JobLog.claim(storage, "nightly", ids.new_id())
    lost = StageIdentity(job.lines.path.fingerprint, {}, (), ())
    new = StageIdentity("9" * 32, {}, (), ())

    def store(**more: Any) -> tuple[StageStore, CountingStorage]:
        counting = CountingStorage(storage)
        made = StageStore(
            storage=counting,
            task_storage=storage,
            log=JobLog.claim(storage, "nightly", ids.new_id()),
            policy="auto",
            settings=Settings(),
            clock=SystemClock(),
            ids=ids,
            engine=cast("Any", None),
            **more,
        )
        return made, counting

    work = cast("Any", Named())
    refusing, counting = store()
    for _ in range(3):
        assert isinstance(refusing.look(work, new), Fresh)
    assert counting.counts["list"] == 1
    with pytest.raises(CorruptDataError, match=r"ends before what the storage holds.*--repair"):
        refusing.look(work, lost)
    assert isinstance(store(lost_records="ignore")[0].look(work, lost), Fresh)
    assert verified(job, run, "--repair")[0] == 0
    assert isinstance(store()[0].look(work, lost), Reuse)
    # a driver that did not see who entered it calls nothing lost: it is fenced when it writes
    assert isinstance(refusing.look(work, lost), Fresh)
    assert log.state.job == "nightly"


@pytest.mark.parametrize("given", ["refuse", "ignore", None])
def test_the_ready_made_job_can_be_told(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """`--lost-records` reaches the driver; its help shows how."""
    seen = []

    def opened(*_: Any, **options: Any) -> None:
        seen.append(options["lost_records"])
        raise CorruptDataError("the log ends before what the storage holds")

    monkeypatch.setattr(sessionize, "DurableShuffle", opened)
    monkeypatch.setattr(sessionize, "SparkSession", Mock())
    app = typer.Typer()
    app.command()(sessionize.run)
    options = [] if given is None else ["--lost-records", given]
    result = CliRunner().invoke(app, ["/data", *options])
    assert isinstance(result.exception, CorruptDataError)
    assert seen == [given or "refuse"]
    assert CliRunner().invoke(app, ["/data", "--lost-records", "hide"]).exit_code == 2
    shown = " ".join(CliRunner().invoke(app, ["--help"]).stdout.replace("│", " ").split())
    assert "sessionize /data/shuffle --lost-records ignore" in shown


def test_a_description_with_impossible_counts_costs_no_memory(job: Any, run: Run) -> None:
    """2**40 partitions, intact by its checksum: corruption, at once."""
    huge = dataclasses.replace(job.orders.describe)
    object.__setattr__(huge, "partitions", 2**40)
    log = SlotLog(LocalStorage(job.url), job.orders.path.log_prefix)
    Path(job.url, log.key(0)).unlink()
    log.append(0, STAGE_RECORDS.encode(huge))
    status, document = verified(job, run)
    assert status == 1
    found = [f for f in document["findings"] if f["key"] == log.key(0)]
    assert any("DESCRIBE.partitions: expected at most" in f["found"] for f in found)
