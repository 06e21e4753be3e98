"""A consumer may die before or after any storage call of open, read, ack, release, finish.

The oracle is the numbers of the rows that the test wrote, and the objects that the records name,
read without the library's codecs.
"""

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from sealed_stage import (
    SealedStage,
    left_over,
    sealed_stage,
    slots_of,
)
from small_stage import SeededIds

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import forget_views, open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage

CrashPoints = Callable[..., Iterator[tuple[Any, Any]]]
OUTPUT = pa.schema([("n", pa.int64())])
RESERVE = 8
SETTINGS = Settings(
    view_memory_bytes=16384,
    view_buffer_bytes=4096,
    view_prefetch=False,
    reserve_records=RESERVE,
    inline_state_bytes=16,
)


@pytest.fixture(autouse=True)
def _one_process_each() -> Iterator[None]:
    """A crash takes everything in memory with it."""
    forget_views()
    yield
    forget_views()


def consume(
    made: SealedStage,
    storage: Storage,
    resume: str,
    *,
    releases: bool,
    effects: list[str],
    salt: int,
) -> View:
    """Read, publish and acknowledge every seven rows; in between release once and open again."""
    how: dict[str, Any] = {
        "consumer": "c",
        "resume": resume,
        "settings": SETTINGS,
        "ids": SeededIds(random.Random(salt)),
        "on_effect": lambda token, payload: effects.append(token),
    }
    view = open_view(made.on(storage), 0, **how)
    assert (view.state is None) == (not view.outputs)
    while not view.at_end:
        numbers: list[int] = []
        for row in view.records():
            numbers.append(row["n"])
            if len(numbers) == 7:
                break
        if numbers:
            batch = pa.record_batch([numbers], schema=OUTPUT)
            output = write_output(view.task, OUTPUT, [batch])
            state = f"{len(view.outputs)} outputs were published before".encode()
            view.ack(outputs=[output], state=state, effect=b"x")
        if releases:
            releases = False
            for _, row in zip(range(3), view.records(), strict=False):
                assert row
            view.release()
            view = open_view(made.on(storage), 0, **how)
    if not view.finished:
        view.finish()
    return view


def published(storage: Storage) -> list[int]:
    """The numbers in the outputs that won records name, each once, in the order of the log."""
    found: list[int] = []
    keys: list[str] = []
    for _, fields in slots_of(storage):
        for output in fields.get("outputs", ()):
            if output["key"] not in keys:
                keys.append(output["key"])
    for key in keys:
        data = storage.read(key)
        at = 0
        while at < len(data):  # frames: the length stands at byte 12
            length = int.from_bytes(data[at + 12 : at + 16], "little")
            body = data[at + 24 : at + 24 + length]
            message = pa.ipc.read_message(pa.py_buffer(body))
            found += pa.ipc.read_record_batch(message, OUTPUT)[0].to_pylist()
            at += 24 + (length + 7) // 8 * 8
    return found


def restored(objects: dict[str, bytes]) -> Callable[[Storage], None]:
    def prepare(storage: Storage) -> None:
        for key, content in objects.items():
            storage.put_if_absent(key, content)

    return prepare


@pytest.mark.requirement("R-F135-15")
@pytest.mark.requirement("R-F135-16")
@pytest.mark.requirement("R-F135-17")
@pytest.mark.requirement("R-F135-19")
@pytest.mark.requirement("R-F135-21")
@pytest.mark.requirement("R-F135-28")
@pytest.mark.parametrize("resume", ["exact", "approximate"])
def test_consumer_dies_at_every_storage_call_and_a_successor_finishes(
    ids: SeededIds, crash_points: CrashPoints, resume: str
) -> None:
    """Exact: the published output is the input. Approximate: no row twice, and the count holds."""
    first = MemoryStorage()
    made = sealed_stage(first, ids, producers=2, partitions=1, rows=24, chars=600)
    expected = made.of(0)
    objects = {i.key: first.read(i.key) for i in first.list("")}
    stage_keys = set(objects)
    tried: dict[int, list[str]] = {}

    def run(storage: Storage, below: Storage) -> None:
        forget_views()
        consume(
            made, storage, resume, releases=True, effects=tried.setdefault(id(below), []), salt=1
        )

    count = 0
    for point, _ in crash_points(restored(objects), run):
        count += 1
        gc.collect(0)
        forget_views()
        storage = point.storage
        effects = tried.pop(id(storage), [])
        tried.clear()
        before = published(storage)
        assert before == [n for n in expected if n in set(before)]
        view = consume(made, storage, resume, releases=False, effects=effects, salt=2)
        found = published(storage)
        records = slots_of(storage)
        if resume == "exact":
            assert found == expected
        else:
            assert found == [n for n in expected if n in set(found)]
            assert len(found) == len(set(found))
            missing = len(expected) - len(found)
            statistics = view.statistics()
            assert missing == statistics.records_dropped
            assert missing <= RESERVE + 7 + 3 + 4
        assert view.state is not None
        # effects: one token per record that stands and asked for one, replayed with the same token
        asked = [p["token"] for _, f in records for p in f.get("pending", ())]
        assert set(effects) == set(asked)
        # nothing of the stage changed, nothing is there that nobody can explain
        now = {i.key for i in storage.list("")}
        assert {k: storage.read(k) for k in stage_keys} == objects
        assert all(key.startswith("job/consumers/c/") for key in now - stage_keys)
        assert len(left_over(storage)) <= 2  # an output and a state of the attempt that died
        assert records[-1][0] == "FINISHED"
    print(f"{count} crash points")
    assert count >= 60
