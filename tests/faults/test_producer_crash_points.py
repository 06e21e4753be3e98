"""A producer attempt may die before or after any storage call: never half of it counts.

What is visible is decided by the COMMIT records on storage, read without the library's codecs; what
must come out by a dictionary of the rows that each attempt was given.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from small_stage import (
    SeededIds,
    model_of,
    new_stage,
    partition_of,
    read_rows,
    records_below,
    seal,
    write,
)

from durable_shuffle.serialization.errors import AbortedError, NotReadyError
from durable_shuffle.shuffle.log.producer_log import abort_attempt
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.segments import IdBatch

PARTITIONS = 5
FIRST, OTHER, RETRY = "a" * 32, "b" * 32, "c" * 32
SALTS = {FIRST: 1, OTHER: 2, RETRY: 3}

Make = Callable[..., list[IdBatch]]
Rival = Callable[[StageHandle, Make], None]


def no_rival(stage: StageHandle, make: Make) -> None:
    """The attempt is alone."""


def rival_commits(stage: StageHandle, make: Make) -> None:
    """Another attempt commits while this one writes."""
    if OTHER not in commits_on(stage):
        write(stage, 0, make(SALTS[OTHER]), OTHER)


def another_is_aborted(stage: StageHandle, make: Make) -> None:
    """A third attempt's ABORT takes the slot that this one aims at."""
    abort_attempt(stage.producer_log(0), OTHER, "d" * 32, "test")


def this_is_aborted(stage: StageHandle, make: Make) -> None:
    """A cleaner gives up this attempt while it writes."""
    abort_attempt(stage.producer_log(0), FIRST, "d" * 32, "test")


def commits_on(stage: StageHandle) -> list[str]:
    """Attempts whose COMMIT stands on storage and was not aborted before, oldest first."""
    aborted, found = set(), []
    for _, kind, fields in records_below(stage.storage, stage.path.producer_log_prefix(0)):
        if kind == "ABORT":
            aborted.add(fields["attempt"])
        elif kind == "COMMIT" and fields["record_id"] not in aborted:
            found.append(fields["record_id"])
    return found


def on(stage: StageHandle, storage: Storage) -> StageHandle:
    """The same stage through another storage."""
    return StageHandle(storage, stage.path, stage.describe)


@pytest.mark.sampled(2)
@pytest.mark.requirement("R-F135-18")
@pytest.mark.requirement("R-F135-3")
@pytest.mark.parametrize(
    ("rival", "at_least"),
    [(no_rival, 20), (rival_commits, 28), (another_is_aborted, 22), (this_is_aborted, 22)],
)
def test_producer_dies_at_every_call(
    rival: Rival,
    at_least: int,
    ids: SeededIds,
    make_batches: Make,
    crash_points: Callable[..., Iterator[tuple[Any, Any]]],
) -> None:
    """Before its COMMIT nothing of the attempt counts, from it on all does; a retry finishes."""
    template = new_stage(MemoryStorage(), ids, make_batches(0)[0][0].schema, partitions=PARTITIONS)
    path = template.path

    def prepare(storage: MemoryStorage) -> None:
        storage.put_if_absent(
            f"{path.log_prefix}0000000000", template.storage.read(f"{path.log_prefix}0000000000")
        )

    def attempt(storage: Storage, below: Storage) -> None:
        def batches() -> Iterator[IdBatch]:
            yield from make_batches(SALTS[FIRST], batches=16)
            rival(on(template, below), make_batches)

        with suppress(AbortedError):
            write(on(template, storage), 0, batches(), FIRST)

    count = 0
    for point, calls in crash_points(prepare, attempt):
        count += 1
        stage = open_stage(point.storage, path)
        visible = commits_on(stage)
        if rival is no_rival:
            committed = point.reached("put_if_absent", path.producers_prefix, calls)
            assert visible == ([FIRST] if committed else [])
        elif rival is this_is_aborted:
            assert visible == []
        if not visible:
            with pytest.raises(NotReadyError):
                seal(stage, 1, ids.new_id())
        result = write(stage, 0, make_batches(SALTS[RETRY]), RETRY)
        counts = visible[0] if visible else RETRY
        assert result.committed.commit.record_id == counts == commits_on(stage)[0]
        assert result.wrote is not bool(visible)
        sealed = seal(stage, 1, ids.new_id())
        given = make_batches(SALTS[counts], batches=16 if counts == FIRST else 4)
        for k in range(PARTITIONS):
            assert read_rows(stage, sealed, k) == partition_of(model_of([given]), k, 1)
        delete_orphans(stage, ids, cause="test")
        owners = {i.key.split("-")[-2] for i in stage.storage.list(path.segments_prefix)}
        assert owners == {counts}
        assert commits_on(stage)[0] == counts
        for k in range(PARTITIONS):
            assert read_rows(stage, sealed, k) == partition_of(model_of([given]), k, 1)
    print(f"{count} crash points")
    assert count >= at_least
