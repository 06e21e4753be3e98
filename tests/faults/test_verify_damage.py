"""Damage of every other kind, and what looks like damage and is none.

Files are cut, lost, exchanged and rewritten with right checksums behind the storage's back.
"""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
from changed_index import entries_of, with_entries
from stored_job import stored_stage
from stored_on_disk import JOB, Stored, changed, flip

from durable_shuffle.serialization.errors import ErrorKind, NotFoundError, UnavailableError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.storage.contract import MOST_BYTES
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.testing.s3_server import S3Server
from durable_shuffle.shuffle.verify.job import verify_job, verify_stage
from durable_shuffle.shuffle.verify.report import VerifyReport


@pytest.fixture(params=["lz4", "none"])
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
    """The stage in both compressions."""
    return Stored.store(tmp_path, request.param)


def named(report: VerifyReport) -> set[str]:
    return {finding.key for finding in report.findings}


def test_cut_and_grown_segments(stored: Stored) -> None:
    """A segment that is shorter or longer than committed is found, with the bytes in question."""
    path = stored.files(".seg")[0]
    size = path.stat().st_size
    for length in (0, 1, size // 2, size - 1):
        with changed(path, lambda data, length=length: data.__delitem__(slice(length, None))):
            ranges = {(f.key, f.start, f.length) for f in stored.verify().findings}
            assert (stored.key(path), length, size - length) in ranges
    with changed(path, lambda data: data.extend(b"tail")):
        (finding,) = stored.verify().findings
        assert (finding.key, finding.start, finding.length) == (stored.key(path), size, 4)


@pytest.mark.parametrize(
    "parts",
    [
        (".seg",),
        ("producers/p000001/",),
        ("producers/p000003/",),
        ("/index/",),
        ("0/log/0000000000",),
        (f"{JOB}/log/0000000000",),
    ],
    ids=["segment", "empty producer's log", "producer log", "index", "describe", "job log"],
)
def test_a_missing_object_is_a_finding(tmp_path: Path, parts: tuple[str, ...]) -> None:
    """Each kind of object that the logs name is missed when it is gone."""
    stored = Stored.store(tmp_path)
    if parts == ("0/log/0000000000",):
        path = tmp_path / stored.stage.path.log_prefix / "0000000000"
    else:
        path = stored.files(*parts)[0]
    path.unlink()
    missing = {f.key for f in stored.verify().findings if f.kind is ErrorKind.NOT_FOUND}
    assert missing == {stored.key(path)}


def test_all_damage_is_found_at_once(stored: Stored) -> None:
    """Three damaged objects, two of them in the same producer, are all named in one report."""
    index, log = stored.files("/index/")[0], stored.files("producers/p000002/")[0]
    segments = stored.files("p000000-", ".seg")[:2]
    wanted = {stored.key(p) for p in (index, log, *segments)}
    for path in (index, log, *segments):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(data)
    assert stored.named() == wanted


def test_a_commit_of_a_newer_version(stored: Stored) -> None:
    """An intact record of a version unknown here is reported as incompatible, with both numbers."""
    path = stored.files("producers/p000000/")[0]

    def make_newer(data: bytearray) -> None:
        struct.pack_into("<H", data, 4, 7)
        crc = zlib.crc32(data[16:], zlib.crc32(data[:12])) ^ zlib.crc32(stored.key(path).encode())
        struct.pack_into("<I", data, 12, crc)

    with changed(path, make_newer):
        (finding,) = [f for f in stored.verify().findings if f.key == stored.key(path)]
        assert finding.kind is ErrorKind.INCOMPATIBLE
        assert "expected 2" in finding.found
        assert "found 7" in finding.found


def test_a_well_formed_commit_with_another_digest(stored: Stored) -> None:
    """A COMMIT with right checksums but other content than SEAL's tag is found."""
    path = stored.files("producers/p000002/")[0]

    def change_digest(data: bytearray) -> None:
        record = msgpack.unpackb(bytes(data[16:]))
        record["fields"]["segments"][0]["sha256"] = b"\1" * 32
        payload = msgpack.packb(record)
        head = struct.pack("<4sHHI", b"\x89DSC", 2, 0, len(payload))
        crc = zlib.crc32(payload, zlib.crc32(head)) ^ zlib.crc32(stored.key(path).encode())
        data[:] = head + struct.pack("<I", crc) + payload

    with changed(path, change_digest):
        report = stored.verify()
        (segment,) = stored.files("p000002-", ".seg")
        assert named(report) == {stored.key(path), stored.key(segment)}
        assert any("content tag" in f.expected for f in report.findings)


def test_a_well_formed_index_of_other_extents(stored: Stored) -> None:
    """An index whose checksums are all right but which is not the commits' index is found."""
    (path,) = stored.files("/index/")

    def shift_first_extent(data: bytearray) -> None:
        entries = entries_of(bytes(data), 0)
        entries["offset"][np.flatnonzero(entries["rows"])[0]] += 8
        data[:] = with_entries(bytes(data), stored.key(path), 0, entries)

    with changed(path, shift_first_extent):
        (finding,) = stored.verify().findings
        assert finding.key == stored.key(path)
        assert finding.kind is ErrorKind.CORRUPT_DATA


def test_a_segment_in_another_ones_place(stored: Stored) -> None:
    """Intact frames of another segment, of whatever length, are not taken for this one's."""
    one, other = stored.files("p000000-", ".seg")[:2]
    data = one.read_bytes(), other.read_bytes()
    one.write_bytes(data[1])
    other.write_bytes(data[0])
    assert stored.named() == {stored.key(one), stored.key(other)}


def test_a_gap_in_the_job_log(tmp_path: Path) -> None:
    """A lost slot of the job log is found, and the stage it named is checked all the same."""
    stored = Stored.store(tmp_path)
    JobLog.claim(stored.storage, JOB, RandomIds().new_id())
    slot = tmp_path / JOB / "log" / "0000000001"
    slot.unlink()
    segment = stored.files(".seg")[0]
    with changed(segment, flip(100, 0)):
        report = verify_job(stored.storage, JOB, Settings())
        assert named(report) == {stored.key(slot), stored.key(segment)}


def test_an_unsealed_stage(tmp_path: Path) -> None:
    """Only what is committed is checked, and the report says how much that is."""
    stored = Stored.store(tmp_path, seal=False, commit=(0, 3))
    report = stored.verify()
    assert report.ok
    (verdict,) = report.stages
    assert (verdict.status, verdict.committed, verdict.producers) == ("partial", 2, 4)
    assert "2 of 4 map tasks" in verdict.summary
    segment = stored.files("p000003-", ".seg")[0]
    with changed(segment, flip(50, 7)):
        assert stored.named() == {stored.key(segment)}


def test_a_released_stage_is_not_damage(tmp_path: Path) -> None:
    """Data that was released may be gone; the logs that stay are still checked."""
    stored = Stored.store(tmp_path)
    release_stage_of(stored.log, stored.storage, stored.stage.path, RandomIds())
    assert not stored.files(".seg")
    report = verify_job(stored.storage, JOB, Settings())
    assert report.ok
    assert [verdict.status for verdict in report.stages] == ["released"]
    closed = stored.files("producers/p000001/0000000001")[0]
    with changed(closed, flip(20, 1)):
        assert named(verify_job(stored.storage, JOB, Settings())) == {stored.key(closed)}


class Meddled(LocalStorage):
    """Does something just before one object is read."""

    key = ""
    act: Callable[[], None]

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        if key == self.key:
            self.act()
        return super().read(key, most_bytes)


def test_a_stage_released_meanwhile_is_released(tmp_path: Path) -> None:
    """Data that vanishes during the verification because of a release is no damage."""
    stored = Stored.store(tmp_path)
    storage = Meddled(tmp_path)
    storage.key = stored.key(stored.files(".seg")[1])
    path = stored.stage.path
    storage.act = lambda: release_stage_of(stored.log, stored.storage, path, RandomIds()) and None
    report = verify_stage(storage, path, Settings())
    assert not stored.files(".seg")
    assert report.ok, report.findings
    assert report.stages[0].status == "released"


def test_an_object_that_cannot_be_asked_for(tmp_path: Path) -> None:
    """A storage that fails for one object gives a finding of that kind; the rest is checked."""
    stored = Stored.store(tmp_path)
    storage = Meddled(tmp_path)
    segments = stored.files("p000000-", ".seg")
    storage.key = stored.key(segments[0])

    def fail() -> None:
        raise UnavailableError("throttled")

    storage.act = fail
    with changed(segments[1], flip(99, 2)):
        report = verify_stage(storage, stored.stage.path, Settings())
        kinds = {(f.key, f.kind) for f in report.findings}
        assert kinds == {
            (storage.key, ErrorKind.UNAVAILABLE),
            (stored.key(segments[1]), ErrorKind.CORRUPT_DATA),
        }
    storage.key = f"{JOB}/log/0000000000"
    with pytest.raises(UnavailableError):
        verify_job(storage, JOB, Settings())


def test_a_lost_job_log_is_a_finding(tmp_path: Path) -> None:
    """Stages without any job log are checked, and the log is missed."""
    stored = Stored.store(tmp_path)
    for slot in stored.files(f"{JOB}/log/"):
        slot.unlink()
    report = verify_job(stored.storage, JOB, Settings())
    assert named(report) == {f"{JOB}/log/0000000000"}
    assert [verdict.rows for verdict in report.stages] == [12_500]


@pytest.mark.s3
def test_on_object_storage(s3_server: S3Server) -> None:
    """The same over S3: an intact job is intact, and a missing segment is missed."""
    storage = open_storage(f"s3://{s3_server.bucket}/verify", s3_server.options)
    log = JobLog.claim(storage, JOB, RandomIds().new_id())
    stage = stored_stage(log, storage, job=JOB)
    assert verify_job(storage, JOB, Settings()).ok
    gone = next(info.key for info in storage.list(stage.path.segments_prefix))
    storage.delete([gone])
    assert named(verify_job(storage, JOB, Settings())) == {gone}


def test_progress_and_sums(tmp_path: Path) -> None:
    """Progress never goes back and ends at all bytes of all segments of all stages."""
    stored = Stored.store(tmp_path)
    stored_stage(stored.log, stored.storage, job=JOB, name="second")
    seen: list[tuple[int, int]] = []
    report = verify_job(stored.storage, JOB, Settings(), lambda *at: seen.append(at))
    total = sum(p.stat().st_size for p in stored.files(".seg"))
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    assert [verdict.rows for verdict in report.stages] == [12_500, 3500]
    assert report.objects == len(stored.files())


def test_an_unknown_job(tmp_path: Path) -> None:
    """A job of which nothing is stored is an error, not a clean report."""
    with pytest.raises(NotFoundError, match="nothing"):
        verify_job(LocalStorage(tmp_path), "nothing", Settings())
