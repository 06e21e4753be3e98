"""The index that a driver has written need not be read again for the tasks."""

from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
from small_stage import SeededIds, commits_of, new_stage, read_rows, seal, write

from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.read.sealed_reader import small_index
from durable_shuffle.shuffle.seal.seal import sealed_state
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage


def made(ids: SeededIds, partitions: int = 3) -> tuple[StageHandle, CountingStorage]:
    """A stage whose only producer has committed."""
    storage = CountingStorage(MemoryStorage())
    schema = pa.schema([("c0", pa.int64())])
    stage = new_stage(storage, ids, schema, partitions=partitions)
    rows = pa.record_batch([pa.array(range(9))], schema=schema)
    write(stage, 0, [(rows, (np.arange(9) % 3).astype(np.uint16))], ids.new_id())
    return stage, storage


def test_what_was_written_is_what_is_read(ids: SeededIds) -> None:
    """Byte for byte; taken instead of a request, and only for the seal that names it."""
    stage, storage = made(ids)
    commits, record_id = commits_of(stage, 1), ids.new_id()
    state, written = sealed_state(stage, commits, producers=1, generation=1, record_id=record_id)
    assert state.seal is not None
    assert written[0] == state.seal.index == record_id
    assert storage.read(stage.path.index_key(record_id)) == written[1] != b""
    read = small_index(stage, state.seal)
    storage.counts.clear()
    assert small_index(stage, state.seal, written) == read
    assert storage.total == 0
    assert small_index(stage, state.seal, (ids.new_id(), b"of another seal")) == read
    assert storage.total > 0
    passed_on = replace(stage, index=read)
    assert read_rows(passed_on, state.seal, 1) == [{"c0": 1}, {"c0": 4}, {"c0": 7}]


def test_the_index_of_who_came_second_is_not_taken(ids: SeededIds) -> None:
    """Another driver's seal stands: its index counts."""
    stage, _ = made(ids)
    commits = commits_of(stage, 1)
    standing = seal(stage, 1, ids.new_id())
    state, written = sealed_state(stage, commits, producers=1, generation=1, record_id=ids.new_id())
    assert state.seal == standing
    found = small_index(stage, standing, written)
    assert found is not None
    assert found[0] == stage.path.index_key(standing.index)


def test_a_seal_is_foreseen_before_anything_of_it_is_written(ids: SeededIds) -> None:
    """It is the one that then stands, with its index."""
    stage, storage = made(ids)
    told: list[tuple[Seal, bytes]] = []

    def foreseen(seal: Seal, index: bytes) -> None:
        assert not list(storage.list(stage.path.prefix + "index/"))
        assert read_state(stage).seal is None
        told.append((seal, index))

    commits, mine = commits_of(stage, 1), partial(sealed_state, producers=1, generation=1)
    state, written = mine(stage, commits, record_id=ids.new_id(), foreseen=foreseen)
    assert told == [(state.seal, written[1])]
    again, _ = mine(stage, commits, record_id=ids.new_id(), foreseen=foreseen)
    assert again.seal == state.seal
    assert len(told) == 1, "where a seal stands, none is foreseen"


def test_a_seal_with_a_large_index_is_not_foreseen(ids: SeededIds) -> None:
    """Such an index is not held."""
    stage, _ = made(ids, partitions=12_000)
    told = Mock()
    commits = commits_of(stage, 1)
    sealed_state(stage, commits, producers=1, generation=1, record_id=ids.new_id(), foreseen=told)
    told.assert_not_called()
