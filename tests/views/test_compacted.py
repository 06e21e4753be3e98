"""A view goes on in the compacted stage exactly where it stopped in the one before."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from sealed_stage import SealedStage, sealed_stage
from small_log import SCHEMA, numbered_rows
from small_stage import (
    ManualClock,
    SeededIds,
    new_stage,
    seal,
    write,
)

from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.producer_log import commit_attempt
from durable_shuffle.shuffle.log.stage import read_state, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_extents
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.seal.rewrite import replace_commits, sealed_commits
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

Open = Callable[..., View]
Numbers = Callable[..., list[int]]
Forget = Callable[[], None]


def compact(made: SealedStage) -> None:
    """Move everything."""
    done = compact_stage(made.stage, ids=RandomIds(), generation=1, settings=Settings())
    assert done.won


@pytest.mark.requirement("R-F135-15")
@pytest.mark.parametrize("count", [0, 1, 7, 39, 40, 41, 79, 80])
def test_a_position_from_before_holds(
    made: SealedStage, open_: Open, numbers: Numbers, other_process: Forget, count: int
) -> None:
    """Whatever was acknowledged by the old index: no record twice, none lost, in order."""
    view = open_()
    assert numbers(view, count) == made.of(0)[:count]
    view.ack()
    compact(made)
    other_process()
    view = open_()
    more = numbers(view, 5)
    view.ack()
    other_process()
    assert more + numbers(open_()) == made.of(0)[count:]


def test_a_view_that_is_open_reads_on(made: SealedStage, open_: Open, numbers: Numbers) -> None:
    """The originals stay: it notices nothing."""
    view = open_()
    first = numbers(view, 10)
    compact(made)
    assert first + numbers(view) == made.of(0)


def test_many_small_extents_come_by_few_requests(memory: MemoryStorage, ids: SeededIds) -> None:
    """A view of a compacted partition asks for its index, then for everything at once."""
    made = sealed_stage(memory, ids, producers=40, partitions=2, rows=4, chars=20)
    compact(made)
    counting = CountingStorage(memory)
    view = open_view(made.on(counting), 0, consumer="c", settings=Settings(), ids=ids)
    assert [row["n"] for row in view.records()] == made.of(0)
    assert counting.counts["read_range"] <= 4


def test_a_hint_into_one_compaction_is_no_hint_into_another(
    memory: MemoryStorage, ids: SeededIds, other_process: Forget
) -> None:
    """Acknowledged inside a compacted extent; a repair of another producer; compacted again with
    other limits, so that the hint fits by number and offset and is wrong: the view goes on at the
    right row."""
    writing = Settings(writer_memory_bytes=1 << 16, frame_bytes=1024, view_prefetch=False)
    stage = new_stage(memory, ids, SCHEMA, partitions=1, producers=6, compression="none")
    counts = [1400, 1400, 350, 1400, 1400, 1400]
    for p, count in enumerate(counts):
        write(stage, p, numbered_rows(0, count, 1), ids.new_id(), producers=6, settings=writing)
    seal(stage, 6, ids.new_id())

    def compact_to(memory_bytes: int) -> None:
        limited = replace(writing, writer_memory_bytes=memory_bytes)
        assert compact_stage(stage, ids=ids, generation=1, settings=limited).won

    def opened() -> View:
        clock = ManualClock(0.0, [])
        return open_view(stage, 0, consumer="c", settings=writing, ids=ids, clock=clock)

    compact_to(80_000)
    view, found = opened(), []
    for row in view.records():
        found.append(row["k"])
        if len(found) == 1400 + 1400 + 350 + 700:
            break
    hint = view.position.producers[3]
    assert hint.frame_offset > 0
    view.ack()
    other_process()
    seal_now = require_seal(stage)
    commits = sealed_commits(stage, seal_now, writing)
    old = commits[5].commit
    copy = replace(old, record_id=ids.new_id())
    for info in old.segments:
        content = memory.read(stage.path.segment_key(5, old.record_id, info.number))
        memory.put(stage.path.segment_key(5, copy.record_id, info.number), [content])
    repaired = commit_attempt(stage.producer_log(5), copy, after=commits[5].slot)
    replace_commits(
        stage,
        read_state(stage),
        commits,
        {5: repaired},
        generation=1,
        record_id=ids.new_id(),
        cause="the test",
    )
    compact_to(120_000)
    same = [e for e in read_extents(stage, require_seal(stage), 0) if e["producer"] == 3]
    assert any(
        int(e["segment"]) == hint.segment
        and int(e["offset"]) < hint.frame_offset < int(e["offset"] + e["length"])
        for e in same
    ), "the hint does not fit: the case is not met"
    rest = [row["k"] for row in opened().records()]
    assert found + rest == [n for count in counts for n in range(count)]
