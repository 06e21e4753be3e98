"""Stages with damaged logs can be released, and stop nothing that is done for others."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from littered_job import StoredConsumer, littered_job
from stored_job import stored_stage

from durable_shuffle.jobs.stages.stored import StoredStages
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import StageReleased
from durable_shuffle.shuffle.release.retention import register_consumers
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

Run = Callable[..., Any]

DESCRIBE, SEAL, COMMIT = "log/0000000000", "log/0000000001", "producers/p000002/0000000000"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def data_of(url: str, path: StagePath) -> list[Path]:
    """What a release must delete."""
    folder = Path(url, path.prefix)
    found = [p for part in ("segments", "compacted", "index") for p in (folder / part).rglob("*")]
    return [p for p in found if p.is_file()]


def of_another_version(path: Path) -> None:
    """Put an intact record of version 3 there; the CRC is bound to the place."""
    root = path.parents[3]
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 4, 3)
    crc = zlib.crc32(bytes(data[16:]), zlib.crc32(bytes(data[:12])))
    place = zlib.crc32(path.relative_to(root).as_posix().encode())
    struct.pack_into("<I", data, 12, crc ^ place)
    path.write_bytes(data)


@pytest.mark.parametrize("how", [flip, Path.unlink])
@pytest.mark.parametrize("place", [DESCRIBE, SEAL, COMMIT])
def test_a_stage_with_a_damaged_log_can_be_released(
    job: Any, run: Run, place: str, how: Callable[[Path], None]
) -> None:
    """All of its data goes, `verify` finds nothing any more, and a second time there is nothing to
    do; other stages stay as they are."""
    path = job.orders.path
    how(Path(job.url, path.prefix, place))
    for index in Path(job.url, path.index_prefix).iterdir():  # its driver died an hour ago
        os.utime(index, (index.stat().st_mtime - 3600,) * 2)
    assert run("verify", job.url, "nightly").exit_code == 1
    result = run("release", job.url, "nightly", "orders", "--yes")
    assert result.exit_code == 0, result.output
    assert data_of(job.url, path) == []
    assert len(data_of(job.url, job.lines.path)) > 1
    result = run("verify", job.url, "nightly")
    assert result.exit_code == 0, result.output
    assert "nothing to do" in run("release", job.url, "nightly", "orders", "--yes").output
    (shown,) = json.loads(run("ls", job.url, "nightly", "--json").stdout)["jobs"]
    status = {one["name"] + one["fingerprint"][0]: one["status"] for one in shown["stages"]}
    assert status == {"orders0": "released", "linesa": "stored", "linesb": "partial"}
    assert run("gc", job.url, "nightly", "--delete", "--older-than", "0s").exit_code == 0


@pytest.mark.parametrize("place", [DESCRIBE, SEAL, COMMIT])
@pytest.mark.parametrize("command", [("release", "--yes"), ("gc", "--delete")])
def test_a_release_that_damage_stopped_is_finished(
    job: Any, run: Run, place: str, command: tuple[str, ...]
) -> None:
    """The job's log says RELEASED, the data stands, and a log of the stage is damaged."""
    path, ids = job.orders.path, RandomIds()
    names = (path.name, path.fingerprint, path.incarnation)
    job.log.append(StageReleased(ids.new_id(), job.log.generation, *names, "test"))
    flip(Path(job.url, path.prefix, place))
    what = ("orders",) if command[0] == "release" else ("--older-than", "0s")
    result = run(command[0], job.url, "nightly", *what, *command[1:])
    assert result.exit_code == 0, result.output
    assert data_of(job.url, path) == []
    assert run("verify", job.url, "nightly").exit_code == 0


def test_a_stage_of_another_version_is_refused_before_anything_is_decided(
    job: Any, run: Run
) -> None:
    """It is not damaged: no RELEASED is written, the others go, the exit code says so."""
    path = job.orders.path
    of_another_version(Path(job.url, path.prefix, DESCRIBE))
    result = run("release", job.url, "nightly", "--yes")
    assert result.exit_code == 1
    assert "control record version: expected 2" in result.output
    state = read_job(LocalStorage(job.url), "nightly")
    assert list(state.order) == [path]
    assert data_of(job.url, path)
    assert data_of(job.url, job.lines.path) == []


def test_gc_goes_on_over_a_damaged_stage(tmp_path: Path, run: Run) -> None:
    """Litter of other stages goes, nothing of the damaged one; the exit code says so."""
    littered = littered_job(LocalStorage(tmp_path), RandomIds())
    flip(Path(tmp_path, littered.sealed.path.prefix, DESCRIBE))
    kept = data_of(str(tmp_path), littered.sealed.path)
    others = {key for key in littered.goes if not key.startswith(littered.sealed.path.prefix)}
    assert others
    result = run("gc", tmp_path, "job", "--delete", "--older-than", "0s")
    assert result.exit_code == 1
    assert littered.sealed.path.prefix in result.output
    assert data_of(str(tmp_path), littered.sealed.path) == kept
    assert not [key for key in others if Path(tmp_path, key).exists()]


def test_gc_goes_on_where_a_release_cannot_be_finished(job: Any, run: Run) -> None:
    """A released stage of another version stays and is named; the next one is finished."""
    ids = RandomIds()
    for stage in (job.orders, job.lines):
        names = (stage.path.name, stage.path.fingerprint, stage.path.incarnation)
        job.log.append(StageReleased(ids.new_id(), job.log.generation, *names, "test"))
    of_another_version(Path(job.url, job.orders.path.prefix, DESCRIBE))
    result = run("gc", job.url, "nightly", "--delete", "--older-than", "0s")
    assert result.exit_code == 1
    assert job.orders.path.prefix in result.output
    assert data_of(job.url, job.orders.path)
    assert data_of(job.url, job.lines.path) == []


def stages(storage: LocalStorage, log: JobLog) -> StoredStages:
    """The stored stages of a job, without a session."""
    driver: Any = SimpleNamespace(
        log=log,
        storage=CountingStorage(storage),
        clock=SystemClock(),
        ids=RandomIds(),
        settings=Settings(),
        keep=None,
    )
    return StoredStages(driver)


def test_release_consumed_goes_on_over_a_damaged_stage(job: Any) -> None:
    """The stage behind it goes; the error names the damaged one, and that it was left."""
    storage, ids = LocalStorage(job.url), RandomIds()
    read = stored_stage(
        job.log, storage, job="nightly", rows=(30, 0, 20), partitions=3, used_partitions=3
    )
    register_consumers(read, ["a"], ids=ids, generation=1)
    for k in range(3):
        consumer = StoredConsumer(storage, read, k, "a", ids)
        consumer.open()
        assert consumer.ack({0: 10, 2: 6}, finish=True)
    flip(Path(job.url, job.orders.path.prefix, DESCRIBE))
    with pytest.raises(CorruptDataError, match=job.orders.path.folder) as caught:
        stages(storage, job.log).release_consumed()
    assert "all others are done" in str(caught.value.__notes__)
    assert data_of(job.url, read.path) == []
    assert data_of(job.url, job.orders.path)


def test_durable_shuffle_releases_a_damaged_stage(job: Any) -> None:
    """`release` by label takes it, too."""
    storage = LocalStorage(job.url)
    flip(Path(job.url, job.orders.path.prefix, DESCRIBE))
    (freed,) = stages(storage, job.log).release("orders", None)
    assert freed.objects > 0
    assert data_of(job.url, job.orders.path) == []
