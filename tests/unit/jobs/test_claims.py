"""Objects of one process share a claim; another process does not."""

from pathlib import Path

import pytest

from durable_shuffle.jobs import claims
from durable_shuffle.jobs.claims import hold_claim, let_go, read_before_claim
from durable_shuffle.serialization.errors import ConflictError, FencedError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.local import LocalStorage


def held(storage: LocalStorage, job: str = "job", *, take_over: bool = False) -> JobLog:
    return hold_claim(storage, job, ids=RandomIds(), clock=SystemClock(), take_over=take_over)


def test_a_second_object_goes_on_with_the_claim(tmp_path: Path) -> None:
    """Neither fences the other, also with `on_conflict="fail"`; the last to go ends the claim."""
    storage, again = LocalStorage(tmp_path), LocalStorage(tmp_path)
    first, second = held(storage), held(again)
    assert first is second
    assert held(storage, "other") is not first
    let_go(first, storage)
    assert not read_job(storage, "job").ended
    let_go(second, again)
    assert read_job(storage, "job").ended
    third = held(storage)
    assert (third is first, third.generation) == (False, 2)
    let_go(first, storage)  # once too often
    assert not read_job(storage, "job").ended


def test_what_was_read_before_a_claim_may_be_old(tmp_path: Path) -> None:
    """The log is read beside other requests; drivers that claim meanwhile are met as ever."""
    storage = LocalStorage(tmp_path)
    before = read_before_claim(storage, "job")
    assert before is not None
    other = JobLog.claim(storage, "job", "b" * 32)
    log = hold_claim(
        *(storage, "job"),
        ids=RandomIds(),
        clock=SystemClock(),
        take_over=True,
        before=before,
    )
    assert (log.generation, log.run) == (2, 2)
    with pytest.raises(FencedError):
        other.check_owner()
    assert read_before_claim(storage, "job") is None, "this process holds the job"


def test_another_process_is_another_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused or takes over; a later object of the first process claims the job anew."""
    storage = LocalStorage(tmp_path)
    mine = held(storage)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(claims, "_held", {})
        with pytest.raises(ConflictError, match=r"generation 1 \(.*:\d+, since 20"):
            held(storage)
        other = held(storage, take_over=True)
    with pytest.raises(FencedError):
        mine.check_owner()
    with pytest.raises(ConflictError, match="generation 2"):
        held(storage)
    anew = held(storage, take_over=True)
    assert (anew is mine, anew.generation) == (False, 3)
    with pytest.raises(FencedError):
        other.check_owner()


def test_the_end_of_the_process_is_told(tmp_path: Path) -> None:
    """Claims that nobody let go end then, those that another process took do not."""
    storage = LocalStorage(tmp_path)
    held(storage, "mine")
    held(storage, "taken")
    JobLog.claim(storage, "taken", "b" * 32)
    claims._end_all()
    assert read_job(storage, "mine").ended
    assert not read_job(storage, "taken").ended


def test_two_services_that_serve_one_url_are_two_storages() -> None:
    """Otherwise a driver would go on with a claim that the other service never saw."""

    def key(**options: object) -> object:
        return claims._key(FsspecStorage("s3://bucket/x", options), "job")

    here, there = "http://127.0.0.1:1", "http://127.0.0.1:2"
    nested = {"client_kwargs": {"endpoint_url": here, "region_name": "a"}}
    assert key(endpoint_url=here) != key(endpoint_url=there)
    assert key(endpoint_url=here, key="a", secret="b") == key(**nested)
