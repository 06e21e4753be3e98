"""Cleaning up orphans under random histories of attempts, against a plain model of their fates.

An attempt's fate is the first record that names it. Whatever happened before: after a clean-up the
segments of committed attempts are all there, those of all others are gone, and a COMMIT that lands
too late counts for nothing.
"""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_stage import SeededIds, new_stage

from durable_shuffle.serialization.errors import AbortedError
from durable_shuffle.shuffle.log.producer_log import (
    abort_attempt,
    commit_attempt,
    read_producer,
)
from durable_shuffle.shuffle.log.records import PRODUCER_RECORDS, Commit
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.storage.memory import MemoryStorage

PRODUCERS, ATTEMPTS = 2, 4
ACTIONS = ("write", "commit", "repair", "abort", "clean")

steps = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS), st.integers(0, PRODUCERS - 1), st.integers(0, ATTEMPTS - 1)
    ),
    max_size=25,
)


class FateModel:
    """One producer's log as a list of (kind, attempt)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []

    def fate(self, attempt: int) -> str | None:
        """The first record that names the attempt."""
        return next((kind for kind, a in self.log if a == attempt), None)

    def counting(self) -> int | None:
        """The first COMMIT that is its attempt's fate."""
        for slot, (kind, attempt) in enumerate(self.log):
            if kind == "COMMIT" and ("ABORT", attempt) not in self.log[:slot]:
                return attempt
        return None

    def abort(self, attempt: int) -> bool:
        if self.fate(attempt) is None:
            self.log.append(("ABORT", attempt))
        return self.fate(attempt) == "ABORT"

    def commit(self, attempt: int) -> int | None:
        """Return the attempt whose COMMIT stands; None if this one was aborted before."""
        for slot, (kind, a) in enumerate(self.log):
            if kind == "COMMIT" and ("ABORT", a) not in self.log[:slot]:
                return a
            if kind == "ABORT" and a == attempt:
                return None
        self.log.append(("COMMIT", attempt))
        return attempt


def run_history(history: list[tuple[str, int, int]]) -> None:
    """Play a history on the library and on the model, and compare after every step."""
    ids = SeededIds(random.Random(5))
    schema = pa.schema([("k", pa.int64())])
    stage = new_stage(MemoryStorage(), ids, schema, partitions=1, producers=PRODUCERS)
    names = {(p, a): ids.new_id() for p in range(PRODUCERS) for a in range(ATTEMPTS)}
    models = [FateModel() for _ in range(PRODUCERS)]
    written: dict[tuple[int, int], set[str]] = {key: set() for key in names}
    for action, p, a in [*history, ("clean", 0, 0)]:
        name, log, model = names[p, a], stage.producer_log(p), models[p]
        commit = Commit(name, p, PRODUCERS, 0, 0, (), b"")
        if action == "write":
            key = stage.path.segment_key(p, name, len(written[p, a]))
            written[p, a].add(key)
            stage.storage.put(key, [b"123"])
        elif action == "commit":
            expected = model.commit(a)
            try:
                found = commit_attempt(log, commit).commit.record_id
            except AbortedError:
                assert expected is None
            else:
                assert expected is not None
                assert found == names[p, expected]
        elif action == "repair":  # passes COMMITs, and may land after its own ABORT
            model.log.append(("COMMIT", a))
            log.append(log.find_end(), PRODUCER_RECORDS.encode(commit))
        elif action == "abort":
            assert abort_attempt(log, name, ids.new_id(), "test") is model.abort(a)
        else:
            there = {info.key for info in stage.storage.list(stage.path.segments_prefix)}
            goes: set[str] = set()
            for owner, keys in written.items():
                if keys & there and models[owner[0]].abort(owner[1]):
                    goes |= keys & there
                    keys.clear()
            freed = delete_orphans(stage, ids, cause="test")
            assert (freed.objects, freed.data_bytes) == (len(goes), 3 * len(goes))
        there = {info.key for info in stage.storage.list(stage.path.segments_prefix)}
        assert there == set().union(*written.values())
        for q, other in enumerate(models):
            counts = read_producer(stage.producer_log(q)).counting()
            expected = other.counting()
            assert (counts.commit.record_id if counts else None) == names.get((q, expected))


@pytest.mark.requirement("R-F135-3")
@given(steps)
def test_clean_up_never_deletes_what_an_attempt_committed(
    history: list[tuple[str, int, int]],
) -> None:
    """After every step storage and model agree on what counts and on what is there."""
    run_history(history)


@pytest.mark.soak
@settings(max_examples=5000)
@given(steps)
def test_clean_up_never_deletes_what_an_attempt_committed_soak(
    history: list[tuple[str, int, int]],
) -> None:
    """The same, many more histories."""
    run_history(history)
