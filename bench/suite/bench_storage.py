"""Reading from the real S3 server, against a bare ranged download of the same bytes.

Both sides send the same ranged requests, 16 at a time, through the same driver to the same server
on this machine; the stored side checks, decodes and reconciles every row. Bars: a subpartition at
least 0.7 of the download's speed; 1,000 small extents at least 5 times as fast once compacted; a
compaction at the seal, where it is on by default, pays for itself with the first read.
Under --benchmark-enable each writes its line of docs/benchmarks.md.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from document import record
from small_stage import SeededIds, new_stage, seal, write

from durable_shuffle.bench.interleaved import Timings, interleave
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.read.extents import indexed_extent
from durable_shuffle.shuffle.read.sealed_reader import read_extents, read_subpartition
from durable_shuffle.shuffle.repair.compaction import (
    SMALL_BYTES,
    bytes_to_compact_at_seal,
    compact_stage,
)
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.range_plan import REQUESTS_AT_ONCE
from durable_shuffle.shuffle.storage.retrying import RetryingStorage
from durable_shuffle.shuffle.testing.s3_server import S3Server, run_s3_server

pytestmark = [pytest.mark.s3, pytest.mark.timeout(0)]

SEAL_HEAD = ("case", "read s", "compact s", "read after s", "first read / without", "by default")
HEAD = ("case", "base s", "stored s", "ratio", "bar", "rounds")
SCHEMA = pa.schema([("n", pa.int64()), ("value", pa.float64()), ("text", pa.string())])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with one bucket."""
    with run_s3_server(tmp_path_factory.mktemp("s3"), clock=SystemClock()) as found:
        yield found


@pytest.fixture
def storage(server: S3Server) -> RetryingStorage:
    """A folder of its own on the server."""
    url = f"s3://{server.bucket}/{RandomIds().new_id()}"
    return RetryingStorage(FsspecStorage(url, server.options))


def make_stage(storage: RetryingStorage, producers: int, rows: int, partitions: int) -> StageHandle:
    """Write and seal a stage of rows that hardly compress."""
    ids, draw = SeededIds(random.Random(7)), np.random.default_rng(7)
    stage = new_stage(storage, ids, SCHEMA, partitions=partitions, producers=producers)
    for p in range(producers):
        texts = [f"{n:016x}" for n in draw.integers(0, 1 << 62, rows)]
        columns = [np.arange(rows), draw.random(rows), pa.array(texts)]
        batch = pa.record_batch(columns, schema=SCHEMA)
        to = (np.arange(rows) % partitions).astype(np.uint16)
        write(stage, p, [(batch, to)], ids.new_id(), producers=producers, settings=Settings())
    seal(stage, producers, ids.new_id())
    return stage


def download(stage: StageHandle, sealed: Seal, k: int) -> Callable[[], int]:
    """Return what fetches the ranges of partition k through the driver and drops them."""
    backend = stage.storage.backend  # type: ignore[attr-defined]
    filesystem, root = backend._connect()
    entries = read_extents(stage, sealed, k)
    places = [indexed_extent(stage.path, k, entry).where for entry in entries[entries["rows"] > 0]]

    def run() -> int:
        size = 0
        for at in range(0, len(places), REQUESTS_AT_ONCE):
            some = places[at : at + REQUESTS_AT_ONCE]
            found = filesystem.cat_ranges(
                [f"{root}/{where.key}" for where in some],
                [where.start for where in some],
                [where.start + where.length for where in some],
            )
            size += sum(map(len, found))
        return size

    return run


def read(stage: StageHandle, k: int) -> Callable[[], int]:
    """Return what reads partition k and counts its rows."""
    sealed = require_seal(stage)

    def run() -> int:
        return sum(batch.num_rows for batch in read_subpartition(stage, sealed, k, Settings()))

    return run


def judge(
    benchmark: Any, case: str, cases: dict[str, Callable[[], object]], *, bar: float, rounds: int
) -> None:
    """Time "base" and "stored" in turn: speed of stored by that of base must reach the bar."""
    measuring = rounds > 1
    timings: Timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": int(measuring)}, rounds=1
    )
    ratio = timings.ratio("base", "stored")
    print(f"\n{case}\n{timings.table('base')}\nspeed, stored / base: {ratio:.2f}, bar {bar}")
    benchmark.extra_info.update(ratio=ratio, seconds=dict(timings.seconds))
    if measuring:
        seconds = (f"{timings.median('base'):.2f}", f"{timings.median('stored'):.2f}")
        verdict = f"{ratio:.2f}" if ratio >= bar else f"{ratio:.2f} (missed)"
        record("storage", HEAD, (case, *seconds, verdict, f"{bar}", str(rounds)))
        assert ratio >= bar


def test_read_a_subpartition(benchmark: Any, storage: RetryingStorage, rounds: int) -> None:
    """One of two partitions, 32 extents of about 2.5 MB each, by 16 requests at a time."""
    measuring = rounds > 1
    producers, rows = (32, 200_000) if measuring else (3, 200)
    stage = make_stage(storage, producers, rows, 2)
    sealed = require_seal(stage)
    bare, stored = download(stage, sealed, 0), read(stage, 0)
    assert stored() == producers * rows // 2
    assert bare() == sum(read_extents(stage, sealed, 0)["length"].tolist())
    case = f"one partition, {producers} extents, against a bare ranged download"
    judge(benchmark, case, {"base": bare, "stored": stored}, bar=0.7, rounds=rounds)


def test_compaction(benchmark: Any, storage: RetryingStorage, rounds: int) -> None:
    """One partition of 1,000 producers, 20 rows each, before and after."""
    measuring = rounds > 1
    producers, rows = (1000, 40) if measuring else (5, 40)
    stage = make_stage(storage, producers, rows, 2)
    before = read(stage, 0)
    done = compact_stage(stage, ids=RandomIds(), generation=1, settings=Settings())
    after = read(stage, 0)
    assert done.won
    assert before() == after() == producers * rows // 2
    case = f"{producers:,} small extents, before and after compaction"
    judge(benchmark, case, {"base": before, "stored": after}, bar=5, rounds=rounds)


@pytest.mark.soak
@pytest.mark.parametrize(("many", "rows"), [(60, 50), (40, 1000), (20, 6000)])
def test_compaction_at_the_seal(
    benchmark: Any, storage: RetryingStorage, measuring: bool, many: int, rows: int
) -> None:
    """Compaction and one read of all partitions, against that read alone; both once."""
    many, rows = (many, rows) if measuring else (34, 2)
    stage = make_stage(storage, many, many * rows, many)
    sealed = require_seal(stage)
    extent = sealed.data_bytes / many**2
    default = bytes_to_compact_at_seal(stage, sealed, Settings())
    assert bool(default) == (many >= 32)
    seconds: dict[str, float] = {}

    def timed(step: str, run: Callable[[], object]) -> object:
        begun = time.perf_counter()
        result = run()
        seconds[step] = time.perf_counter() - begun
        return result

    def read_all() -> int:
        return sum(read(stage, k)() for k in range(many))

    def both() -> None:
        assert timed("before", read_all) == many * many * rows
        timed(
            "compact",
            lambda: compact_stage(
                stage,
                ids=RandomIds(),
                generation=1,
                settings=Settings(),
                small_bytes=SMALL_BYTES,
            ),
        )
        assert timed("after", read_all) == many * many * rows

    benchmark.pedantic(both, rounds=1)
    ratio = (seconds["compact"] + seconds["after"]) / seconds["before"]
    print(f"\n{many} x {many} extents of {extent:,.0f} bytes: {seconds}, ratio {ratio:.2f}")
    if measuring:
        case = f"{many} x {many} extents of {extent / 1024:.1f} KiB"
        steps = [f"{seconds[step]:.1f}" for step in ("before", "compact", "after")]
        record("seal", SEAL_HEAD, (case, *steps, f"{ratio:.2f}", "on" if default else "off"))
        assert ratio <= 1 or not default
