"""What does a view cost? Reading through it against the sealed read, resuming, acknowledging.

Bars: with an acknowledgement every million rows at most 1.1 of the sealed read without a consumer,
every 64k rows at most 1.3. Opening to the first record does not depend on how much was
acknowledged: 99% against 1% of a 1 GiB subpartition within 1.3. The stage lies where BENCH_STORAGE
says. What an acknowledgement costs is reported for each storage.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from places import Place, Places
from small_stage import new_stage, seal, write

from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.write.producer import IdBatch

BARS = {1_000_000: 1.1, 65_536: 1.3}
RESUME_BAR = 1.3
PRODUCERS = 4
ROW_BYTES = 8 + 8 + 8 + 104
BATCH_ROWS = 65_536
SCHEMA = pa.schema(
    [("k", pa.int64()), ("a", pa.float64()), ("b", pa.int64()), ("c", pa.binary(104))]
)


def rows_of(producer: int, rows: int) -> Iterator[IdBatch]:
    """Rows that hardly compress, all for subpartition 0."""
    rng = np.random.default_rng(producer)
    for start in range(0, rows, BATCH_ROWS):
        n = min(BATCH_ROWS, rows - start)
        fill = pa.Array.from_buffers(pa.binary(104), n, [None, pa.py_buffer(rng.bytes(104 * n))])
        columns = [
            pa.array(np.arange(start, start + n)),
            pa.array(rng.random(n)),
            pa.array(rng.integers(0, 1 << 60, n)),
            fill,
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA), np.zeros(n, dtype=np.uint16)


def make_stage(storage: Storage, rows: int) -> StageHandle:
    """Return a sealed stage with `rows` rows in its only subpartition."""
    ids = RandomIds()
    stage = new_stage(storage, ids, SCHEMA, partitions=1, producers=PRODUCERS)
    for p in range(PRODUCERS):
        batches = list(rows_of(p, rows // PRODUCERS))
        write(stage, p, batches, ids.new_id(), producers=PRODUCERS, settings=Settings())
    seal(stage, PRODUCERS, ids.new_id())
    return stage


@pytest.fixture(scope="module")
def stage(place: Place, measuring: bool) -> StageHandle:
    """1 GiB in one subpartition."""
    rows = (1 << 30) // ROW_BYTES if measuring else 300_000
    return make_stage(place.new().storage(), rows)


def total_rows(stage: StageHandle) -> int:
    return require_seal(stage).rows


def read_sealed(stage: StageHandle) -> int:
    return sum(b.num_rows for b in read_subpartition(stage, require_seal(stage), 0, Settings()))


def read_view(stage: StageHandle, every: int) -> int:
    """Read all through a view of a new consumer, acknowledging every so many rows."""
    rows = since = 0
    with open_view(stage, 0, consumer=f"c{RandomIds().new_id()}") as view:
        for batch in view:
            done = 0
            while since + batch.num_rows - done >= every:
                done += every - since
                view.ack(view.position_after(done))
                since = 0
            since += batch.num_rows - done
            rows += batch.num_rows
        view.finish()
    return rows


@pytest.mark.timeout(0)
def test_view_against_sealed_read(
    benchmark: Any, stage: StageHandle, rounds: int, measuring: bool
) -> None:
    """Every row is delivered once; under --benchmark-enable the ratios are within the bars."""
    cases: dict[str, Callable[[], object]] = {"sealed read": lambda: read_sealed(stage)}
    for every in BARS:
        cases[f"view, ack every {every}"] = lambda every=every: read_view(stage, every)  # type: ignore[misc]
    assert {run() for run in cases.values()} == {total_rows(stage)}
    timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": int(measuring)}, rounds=1
    )
    print(f"\n{timings.table('sealed read')}")
    for every, bar in BARS.items():
        ratio = timings.ratio(f"view, ack every {every}", "sealed read")
        benchmark.extra_info[f"ack every {every}"] = ratio
        print(f"ack every {every}: {ratio:.2f}, bar {bar}")
    assert not measuring or all(
        timings.ratio(f"view, ack every {every}", "sealed read") <= bar
        for every, bar in BARS.items()
    )


@pytest.mark.timeout(0)
def test_resume_does_not_depend_on_position(
    benchmark: Any, stage: StageHandle, rounds: int, measuring: bool
) -> None:
    """From opening to the first record, with 1% and with 99% acknowledged."""
    rows = total_rows(stage)
    consumers = {"1%": rows // 100, "99%": rows * 99 // 100}
    for name, goal in consumers.items():
        view, seen = open_view(stage, 0, consumer=name.rstrip("%")), 0
        for batch in view:
            if seen + batch.num_rows > goal:
                view.ack(view.position_after(goal - seen))
                break
            seen += batch.num_rows
        assert view.acknowledged.records == goal

    def first(name: str) -> None:  # no release: as after a crash
        view = open_view(stage, 0, consumer=name.rstrip("%"))
        assert next(iter(view)).num_rows
        assert view.acknowledged.records == consumers[name]

    timings = benchmark.pedantic(
        interleave,
        ({name: lambda name=name: first(name) for name in consumers},),  # type: ignore[misc]
        {"rounds": rounds * 5, "warmups": 2},
        rounds=1,
    )
    ratio = timings.ratio("99%", "1%")
    benchmark.extra_info["ratio"] = ratio
    print(f"\n{timings.table('1%')}\n99% / 1%: {ratio:.2f}, bar {RESUME_BAR}")
    assert not measuring or 1 / RESUME_BAR <= ratio <= RESUME_BAR


@pytest.mark.s3
@pytest.mark.timeout(0)
def test_ack_cost_per_storage(benchmark: Any, places: Places, rounds: int, measuring: bool) -> None:
    """Milliseconds of one acknowledgement, by storage."""
    acks = 50 * rounds if measuring else 5
    found: dict[str, float] = {}

    def measure() -> None:
        for name, place in places.by_name.items():
            stage = make_stage(place.new().storage(), PRODUCERS * 4 * acks)
            view = open_view(stage, 0, consumer="c")
            batch = next(iter(view))
            assert batch.num_rows >= acks
            seconds = []
            for n in range(1, acks + 1):
                position = view.position_after(n)
                start = time.perf_counter()
                view.ack(position)
                seconds.append(time.perf_counter() - start)
            assert view.acknowledged.records == acks
            found[name] = 1000 * statistics.median(seconds)

    benchmark.pedantic(measure, rounds=1)
    benchmark.extra_info.update(found)
    for name, milliseconds in found.items():
        print(f"\nack on {name}: {milliseconds:.2f} ms", end="")
