"""Damage to control records is told as damage: what is damaged, and that `verify` helps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forged_record import forge
from stored_job import stored_stage

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.log.named_stage import named_stage
from durable_shuffle.shuffle.log.records import STAGE_RECORDS
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import read_state
from durable_shuffle.shuffle.storage.local import LocalStorage

Run = Callable[..., Any]


def test_a_seal_that_leads_out_of_the_root_is_corruption(job: Any, run: Run) -> None:
    """An intact record whose index is no id: every command says corruption and names the slot, none
    says misuse. The stage can be released."""
    path = job.orders.path
    log = SlotLog(LocalStorage(job.url), path.log_prefix)
    seal = read_state(job.orders).seal
    object.__setattr__(seal, "index", "../../../../etc/passwd")
    Path(job.url, log.key(1)).unlink()
    log.append(1, STAGE_RECORDS.encode(seal))
    for command in (("verify", "nightly"), ("cat", "nightly", "orders"), ("gc", "nightly")):
        result = run(command[0], job.url, *command[1:])
        assert (result.exit_code, log.key(1) in result.output) == (1, True), result.output
        assert "invalid_input" not in result.output
    document = json.loads(run("verify", job.url, "nightly", "--json").stdout)["jobs"][0]
    assert ("corrupt_data", log.key(1)) in {(f["kind"], f["key"]) for f in document["findings"]}
    assert run("release", job.url, "nightly", "orders", "--yes").exit_code == 0
    assert run("verify", job.url, "nightly").exit_code == 0


@pytest.mark.parametrize("name", ["rows", "data_bytes", "memory_bytes"])
@pytest.mark.parametrize("value", [-1, 2**63, 2**64 - 1])
def test_a_seal_of_sums_that_cannot_be_is_corruption(
    job: Any, run: Run, name: str, value: int
) -> None:
    """A reader on Spark would hand them to the JVM, whose numbers end at 2**63."""
    key = forge(job.orders.log(), 1, lambda _: {name: value})
    with pytest.raises(CorruptDataError, match=f"{key}.*{name} of a SEAL"):
        read_state(job.orders)
    for command in ("verify", "cat", "inspect"):
        result = run(command, job.url, "nightly", *["orders"] * (command != "verify"))
        assert (result.exit_code, key in result.output) == (1, True), result.output


def test_a_hole_in_the_job_log_is_named_where_a_stage_is_missed(job: Any, run: Run) -> None:
    """Not "has no stage": by the library and by commands, with the slot and with `verify`."""
    slots = sorted(Path(job.url, "nightly", "log").iterdir())
    slots[1].unlink()
    key = "nightly/log/0000000001"
    with pytest.raises(CorruptDataError, match=rf"{key}.*verify"):
        named_stage(job.url, "nightly", "lines")
    result = run("inspect", job.url, "nightly", "orders")
    assert (key in result.output, "verify" in result.output) == (True, True)


def test_a_lost_end_of_the_job_log_is_named_where_a_stage_is_missed(job: Any, run: Run) -> None:
    """The stage's folder proves the record."""
    last = stored_stage(job.log, LocalStorage(job.url), job="nightly", name="last")
    sorted(Path(job.url, "nightly", "log").iterdir())[-1].unlink()
    with pytest.raises(NotFoundError, match=rf"{last.path.folder}.*verify"):
        named_stage(job.url, "nightly", "last")
    result = run("cat", job.url, "nightly", "last")
    assert (result.exit_code, last.path.folder in result.output) == (1, True)
    with pytest.raises(NotFoundError, match="no stage named 'other'"):
        named_stage(job.url, "nightly", "other")


def test_a_lost_description_is_named(job: Any, run: Run) -> None:
    """The object and what helps."""
    key = f"{job.orders.path.log_prefix}0000000000"
    Path(job.url, key).unlink()
    with pytest.raises(NotFoundError, match=rf"{key}.*verify"):
        named_stage(job.url, "nightly", "orders")
    result = run("cat", job.url, "nightly", "orders")
    assert (result.exit_code, key in result.output, "verify" in result.output) == (1, True, True)
