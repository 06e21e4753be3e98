"""Requests on the wire to a real S3 server, held to the formulas of docs/internals/storage.md.

Counted where the driver sends them, retries included: what an object store would charge for.
"""

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import s3fs
from sealed_stage import SealedStage, sealed_stage
from small_stage import SeededIds, new_stage, read_rows, write

from durable_shuffle.serialization.errors import InvalidInputError, NotFoundError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.stage import require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_group, small_index
from durable_shuffle.shuffle.release.gc_run import collect_garbage
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.retrying import RetryingStorage
from durable_shuffle.shuffle.testing.s3_server import S3Server

pytestmark = pytest.mark.s3

PRODUCERS, PARTITIONS = 6, 4


@pytest.fixture(scope="module")
def wire(s3_server: S3Server) -> tuple[RetryingStorage, Counter[str]]:
    """A storage, and the requests that left it, by method."""
    backend = FsspecStorage(f"s3://{s3_server.bucket}/{RandomIds().new_id()}", s3_server.options)
    filesystem, _ = backend._connect()
    sent: Counter[str] = Counter()

    def count(request: object, **_: object) -> None:
        sent[request.method] += 1  # type: ignore[attr-defined]

    filesystem.s3.meta.events.register("before-send.s3", count)
    return RetryingStorage(backend), sent


@pytest.fixture(scope="module")
def sealed(wire: tuple[RetryingStorage, Counter[str]]) -> SealedStage:
    """A stage on it, all of whose producers fit into their memory."""
    return sealed_stage(
        wire[0],
        SeededIds(random.Random(1)),
        producers=PRODUCERS,
        partitions=PARTITIONS,
        settings=Settings(compression="none"),
    )


def test_a_producer_within_its_memory_sends_two_puts(
    wire: tuple[RetryingStorage, Counter[str]],
) -> None:
    """Its segment and its COMMIT, and one look at its log before."""
    storage, sent = wire
    schema = pa.schema([("n", pa.int64())])
    stage = new_stage(storage, RandomIds(), schema, partitions=50)
    batch = pa.record_batch([list(range(5000))], schema=schema)
    batches = [(batch, np.arange(5000, dtype=np.uint16) % 50)] * 3
    sent.clear()
    write(stage, 0, batches, RandomIds().new_id(), settings=Settings())
    assert dict(sent) == {"GET": 1, "PUT": 2}


@pytest.mark.parametrize("k", range(PARTITIONS))
def test_a_consumer_sends_at_most_three_gets_more_than_there_are_producers(
    wire: tuple[RetryingStorage, Counter[str]], sealed: SealedStage, k: int
) -> None:
    """The small index, and one range per producer; no listing and no look before."""
    seal = require_seal(sealed.stage)
    wire[1].clear()
    rows = read_rows(sealed.stage, seal, k, Settings())
    assert [row["n"] for row in rows] == sealed.of(k)
    assert dict(wire[1]) == {"GET": PRODUCERS + 1}


@pytest.mark.parametrize("k", range(PARTITIONS))
def test_a_task_that_got_the_index_with_its_stage_does_not_read_it(
    wire: tuple[RetryingStorage, Counter[str]], sealed: SealedStage, k: int
) -> None:
    """One range per producer. The driver has read the index once, for all tasks."""
    seal = require_seal(sealed.stage)
    wire[1].clear()
    stage = replace(sealed.stage, index=small_index(sealed.stage, seal))
    assert dict(wire[1]) == {"GET": 1}
    wire[1].clear()
    assert pickle.loads(pickle.dumps(stage)).index == stage.index
    rows = read_rows(stage, seal, k, Settings())
    assert [row["n"] for row in rows] == sealed.of(k)
    assert dict(wire[1]) == {"GET": PRODUCERS}


def test_neighbouring_partitions_share_their_requests(
    wire: tuple[RetryingStorage, Counter[str]], sealed: SealedStage
) -> None:
    """Four partitions read together cost what one does."""
    seal = require_seal(sealed.stage)
    wire[1].clear()
    batches = list(read_group(sealed.stage, seal, 0, PARTITIONS, Settings()))
    found = sorted(n for batch in batches for n in batch.column(0).to_pylist())
    assert found == sorted(n for k in range(PARTITIONS) for n in sealed.of(k))
    assert dict(wire[1]) == {"GET": PRODUCERS + 1}


def test_a_thousand_objects_are_deleted_by_one_request(
    wire: tuple[RetryingStorage, Counter[str]],
) -> None:
    """Present or not."""
    storage, sent = wire
    sent.clear()
    storage.delete([f"deleted/{number}" for number in range(1500)])
    assert dict(sent) == {"POST": 2}


@pytest.fixture
def upload(
    wire: tuple[RetryingStorage, Counter[str]], s3_server: S3Server
) -> Iterator[tuple[str, s3fs.S3FileSystem, dict[str, str]]]:
    """What a writer leaves that is killed in a large put: (key, driver, its place)."""
    driver = s3fs.S3FileSystem(**s3_server.options, skip_instance_cache=True)
    bucket, folder, _ = driver.split_path(wire[0].description)
    key = f"job-{RandomIds().new_id()}/segments/killed"
    place = {"Bucket": bucket, "Key": f"{folder}/{key}"}
    begun = driver.call_s3("create_multipart_upload", **place)
    place["UploadId"] = begun["UploadId"]
    driver.call_s3("upload_part", **place, PartNumber=1, Body=b"x" * (5 << 20))
    yield key, driver, place
    storage = wire[0].backend
    storage.delete_temporary([info.key for info in storage.temporary_files("")])


def test_uploads_of_killed_writers_are_found_and_called_off(
    wire: tuple[RetryingStorage, Counter[str]],
    upload: tuple[str, s3fs.S3FileSystem, dict[str, str]],
) -> None:
    """They are no objects; once called off, the writer that was not dead after all fails."""
    key, driver, place = upload
    storage = wire[0].backend
    (found,) = storage.temporary_files(f"{key.partition('/')[0]}/")
    assert found.key == f"{key}?uploadId={place['UploadId']}"
    assert abs(found.modified_wall_seconds - SystemClock().wall()) < 3600
    assert list(storage.temporary_files("elsewhere/")) == []
    assert list(storage.list(f"{key.partition('/')[0]}/")) == []
    for _ in range(2):
        storage.delete_temporary([found.key])
        assert list(storage.temporary_files(f"{key.partition('/')[0]}/")) == []
    with pytest.raises(Exception, match=r"(?i)upload"):
        driver.call_s3("upload_part", **place, PartNumber=2, Body=b"x")
    with pytest.raises(NotFoundError):
        storage.read(key)


@pytest.mark.parametrize("name", ["a/b", "a?uploadId=", "../a?uploadId=1"])
def test_only_uploads_are_called_off_as_such(
    wire: tuple[RetryingStorage, Counter[str]], name: str
) -> None:
    """No object and nothing outside the root."""
    with pytest.raises(InvalidInputError):
        wire[0].backend.delete_temporary([name])


def test_garbage_collection_calls_them_off(
    wire: tuple[RetryingStorage, Counter[str]],
    upload: tuple[str, s3fs.S3FileSystem, dict[str, str]],
) -> None:
    """Once they are old enough; younger ones may still be at work."""
    key, _, _ = upload
    job, ids = key.partition("/")[0], RandomIds()
    JobLog.claim(wire[0], job, ids.new_id())
    for age, left in ((86_400.0, 1), (0.0, 0)):
        report = collect_garbage(
            wire[0],
            job,
            ids=ids,
            clock=SystemClock(),
            settings=Settings(),
            older_than_seconds=age,
            delete=True,
        )
        assert len(report.orphans) == 1 - left
        assert not report.unknown
        assert len(list(wire[0].backend.temporary_files(f"{job}/"))) == left
