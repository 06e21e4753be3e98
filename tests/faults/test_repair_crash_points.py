"""A repair may fail or die before or after any storage call: nothing that counts is lost, the next
repair goes on, and a collection finds the rest.

The oracle is the rows that were written, and records read without the library's codecs.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from sealed_stage import SealedStage, sealed_stage
from small_stage import (
    ManualClock,
    SeededIds,
    read_rows,
    records_below,
)

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import forget_views
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import parse_segment_key
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, require_seal
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.repair.stage import repair_stage
from durable_shuffle.shuffle.seal.rewrite import replace_commits, sealed_commits
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import (
    WRITES,
    FaultyStorage,
    Rule,
    SimulatedCrash,
)
from durable_shuffle.shuffle.verify.stage import check_stage
from durable_shuffle.shuffle.write.producer import run_producer

SETTINGS = Settings(
    writer_memory_bytes=1 << 16, frame_bytes=4096, compression="none", control_threads=1
)
PRODUCERS, PARTITIONS = 3, 2
WHENS: tuple[Literal["before", "after"], ...] = ("before", "after")
Content = dict[str, bytes]
"""Objects of a storage."""


class Template:
    """A compacted stage of a job with lost data: producer 0 can be rebuilt, producer 1 cannot, the
    seal's index is damaged, too."""

    def __init__(self) -> None:
        self.storage, ids = MemoryStorage(), SeededIds(random.Random(3))
        log = JobLog.claim(self.storage, "job", ids.new_id())
        self.made: SealedStage = sealed_stage(
            self.storage,
            ids,
            producers=PRODUCERS,
            partitions=PARTITIONS,
            rows=40,
            chars=900,
            settings=SETTINGS,
        )
        self.stage = self.made.stage
        path = self.stage.path
        log.append(
            StageUse(ids.new_id(), log.generation, path.name, path.fingerprint, path.incarnation)
        )
        index = path.index_key(require_seal(self.stage).index)
        compact = compact_stage(
            self.stage, ids=ids, generation=1, settings=SETTINGS, small_bytes=1 << 20
        ).compact
        assert compact is not None
        objects = self.storage._objects
        for info in list(self.storage.list(path.segments_prefix)):
            if parse_segment_key(info.key)[0] in (0, 1):
                del objects[info.key]
        for segment in compact.segments:
            key = path.compacted_key(compact.record_id, segment.number)
            at = objects[key].find(b"100003:")
            if at >= 0:
                objects[key] = flipped(objects[key], at)
        objects[index] = flipped(objects[index], 30)
        self.content: Content = dict(objects)

    def fresh(self, content: Content | None = None) -> MemoryStorage:
        storage = MemoryStorage()
        for key, data in (content or self.content).items():
            storage.put_if_absent(key, data)
        return storage

    def on(self, storage: Storage) -> StageHandle:
        return self.made.on(storage)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.fixture(scope="module")
def template() -> Template:
    return Template()


def repair(template: Template, storage: Storage, salt: int) -> None:
    """What `verify --repair` does; it names producer 1, unless a run of it committed."""
    done = repair_stage(
        storage, template.stage.path, SETTINGS, ids=SeededIds(random.Random(salt)), generation=1
    )
    if isinstance(storage, MemoryStorage):
        assert done.run_again == (1,) or (done.run_again, done.rebuilt) == ((), (1,)), done


def run_again(template: Template, storage: Storage, salt: int) -> None:
    """What the next run of the job does for producer 1, unless it was done."""
    ids = SeededIds(random.Random(salt))
    stage = template.on(storage)
    state = read_state(stage)
    assert state.seal is not None
    if not state.damaged:
        return
    assert state.damaged.keys() == {1}
    numbers = [100_000 + row for row in range(40)]
    batches = []
    for start in (0, 20):
        ours = numbers[start : start + 20]
        texts = [f"{n}:".ljust(900, "x") for n in ours]
        to = np.array([n % PARTITIONS for n in ours], np.uint16)
        batches.append((pa.record_batch([ours, texts], schema=stage.schema), to))
    done = run_producer(
        replace(stage, damaged=state.damaged),
        1,
        batches,
        attempt=ids.new_id(),
        producers=PRODUCERS,
        settings=SETTINGS,
    )
    replace_commits(
        stage,
        state,
        sealed_commits(stage, state.seal, SETTINGS),
        {1: done.committed},
        generation=2,
        record_id=ids.new_id(),
        cause="test",
    )


def collect(storage: Storage, salt: int) -> GcReport:
    return collect_garbage(
        storage,
        "job",
        ids=SeededIds(random.Random(salt)),
        clock=ManualClock(1e12, []),
        settings=SETTINGS,
        older_than_seconds=0,
        delete=True,
    )


def assert_reads(template: Template, storage: Storage, *, whole: bool) -> None:
    """Right rows, or the right error while the stage is not whole."""
    stage = template.on(storage)
    for k in range(PARTITIONS):
        try:
            found = [row["n"] for row in read_rows(stage, require_seal(stage), k, SETTINGS)]
        except (NotFoundError, CorruptDataError):
            assert not whole
        else:
            assert found == template.made.of(k)


def recover_and_compare(
    template: Template, storage: MemoryStorage, before: Content, *, collect_first: bool
) -> None:
    """Collect, repair and run again in either order; then the stage is whole, and of all that was
    there nothing is gone, and of what was left behind nothing is left."""
    forget_views()
    assert_reads(template, storage, whole=False)
    if collect_first:
        assert not collect(storage, 4).unknown
        assert before.items() <= storage._objects.items()
    if not state_is_whole(template, storage):
        repair(template, storage, 5)
        run_again(template, storage, 6)
    assert_reads(template, storage, whole=True)
    assert not collect(storage, 7).unknown
    assert before.items() <= storage._objects.items()
    assert collect(storage, 8).orphans == ()
    assert unnamed(template, storage) == set()
    assert_reads(template, storage, whole=True)
    assert not check_stage(storage, template.stage.path, SETTINGS, released=False).findings


def state_is_whole(template: Template, storage: Storage) -> bool:
    return not check_stage(storage, template.stage.path, SETTINGS, released=False).findings


def unnamed(template: Template, storage: Storage) -> set[str]:
    """Return attempts with objects that no record names, read without our codecs."""
    path = template.stage.path
    named: set[str] = set()
    for prefix in (path.log_prefix, path.producers_prefix):
        for _, kind, fields in records_below(storage, prefix):
            named |= {fields["record_id"]} if kind != "ABORT" else set()
            named |= {fields["index"]} if "index" in fields else set()
    return {
        key
        for key in (info.key for info in storage.list(path.prefix))
        if "/log/" not in key
        and "/producers/" not in key
        and not any(one in key.rsplit("/", 1)[1] for one in named)
    }


def rules(calls: list[tuple[str, tuple[str, ...]]]) -> Iterator[Rule]:
    """Yield every fault there is: each call, before and after, an error and a death."""
    for nth, (verb, _) in enumerate(calls, start=1):
        same = [v for v, _ in calls[:nth]].count(verb)
        for when in WHENS:
            yield Rule("*", when=when, nth=nth, fault="crash")
            lost = verb in WRITES and when == "after"
            fault: Literal["lost_reply", "error"] = "lost_reply" if lost else "error"
            yield Rule(verb, when=when, nth=same, fault=fault)


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F135-2")
@pytest.mark.requirement("R-F135-22")
@pytest.mark.parametrize("act", [repair, run_again])
@pytest.mark.parametrize(
    "share",
    [0.3, pytest.param(1.0, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
    ids=["sample", "all"],
)
def test_a_repair_ends_at_every_call(
    template: Template, act: Callable[..., None], share: float, seed: int
) -> None:
    """By an error or by death, of `verify --repair` or of the job's next run."""
    before = template.content
    if act is run_again:
        storage = template.fresh()
        repair(template, storage, 1)
        before = dict(storage._objects)
    clean = FaultyStorage(template.fresh(before))
    act(template, clean, 2)
    every = list(rules(clean.calls))
    draw = random.Random(seed)
    chosen = draw.sample(every, int(len(every) * share))
    for rule in chosen:
        storage = template.fresh(before)
        faulty = FaultyStorage(storage, [rule])
        try:
            act(template, faulty, 2)
        except SimulatedCrash:
            assert rule.fault == "crash"
        except DurableShuffleError:
            assert rule.fault != "crash"
        assert faulty.fired == 1, rule
        recover_and_compare(template, storage, before, collect_first=draw.random() < 0.5)
    print(f"{len(chosen)} of {len(every)} crash points")
    assert len(every) >= 60
