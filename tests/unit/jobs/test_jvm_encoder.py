"""The Java encoder in a JVM without Spark: memory, long rows, a killed task; lost rows."""

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain_jvm import java_class, new_object, plain_jvm
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from durable_shuffle.jobs.jvm_rows.encoder import encoder_text
from durable_shuffle.jobs.jvm_rows.written import JvmSegments
from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.shuffle.write.segments import Segment

pytestmark = pytest.mark.spark

MIB = 1 << 20
STAGE, PRODUCER, PARTITIONS = "ab" * 16, 3, 5
SCHEMA = StructType(
    [
        StructField("number", LongType()),
        StructField("text", StringType()),
        StructField("id", IntegerType()),
    ]
)
STORED = pa.schema([("number", pa.int64()), ("text", pa.string())])
PAGES = pa.schema([("segment", pa.int32()), ("data", pa.binary()), ("extents", pa.binary())])


class Harness:
    """Runs the encoder on rows of a number and a text, which take turns in five partitions."""

    def __init__(self, gateway: Any, path: Path) -> None:
        found = java_class(gateway, "EncoderHarness")
        self._gateway, self._path = gateway, path
        self._java = new_object(gateway, found, [encoder_text(), SCHEMA.json()])

    def run(
        self,
        rows: int,
        *,
        length: int = 10,
        memory_bytes: int = 4 * MIB,
        spark_bytes: int = 256 * MIB,
        max_frame_bytes: int = 256 * MIB,
        special: tuple[int, int] = (-1, 0),
        hog: tuple[int, int] = (-1, 0),
        kill_at: int = -1,
        unsafe: bool = True,
    ) -> pa.RecordBatch:
        """Return the rows that the encoder yields."""
        references = self._gateway.new_array(self._gateway.jvm.java.lang.Object, 10)
        wanted, most = min(MIB, max_frame_bytes // 4), max_frame_bytes
        values = ["8s", PARTITIONS, "computed", STAGE, memory_bytes, wanted, most, "lz4"]
        for i, value in enumerate(values):
            references[i] = value
        self.kept = self._java.run(
            *(references, str(self._path), spark_bytes, rows, length),
            *(*special, *hog, kill_at, unsafe),
        )
        return read_pages(self._path)

    def field(self, name: str) -> Any:
        return self._java.getClass().getField(name).get(self._java)


def read_pages(path: Path) -> pa.RecordBatch:
    data, at = memoryview(path.read_bytes()), 0
    columns: list[list[Any]] = [[], [], []]
    while at < len(data):
        columns[0].append(struct.unpack_from(">i", data, at)[0])
        at += 4
        for column in columns[1:]:
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
            column.append(None if length < 0 else bytes(data[at : at + length]))
            at += max(0, length)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, PAGES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PAGES)


def segments(batch: pa.RecordBatch, max_frame_bytes: int = 256 * MIB) -> list[Segment]:
    """Return the segments, checked."""
    batches = (batch.slice(i, 16) for i in range(0, batch.num_rows, 16))
    found = JvmSegments(batches, PRODUCER, STAGE, PARTITIONS, max_frame_bytes)
    return [segment for segment, _ in found]


def numbers(batch: pa.RecordBatch, max_frame_bytes: int = 256 * MIB) -> list[list[int]]:
    """Return the numbers of the rows of each partition; each text is checked."""
    rows: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for segment in segments(batch, max_frame_bytes):
        data = b"".join(segment.parts)
        for entry in segment.extents:
            k, first = int(entry["subpartition"]), int(entry["first_ordinal"])
            decoder = FrameDecoder(
                lambda ordinal, k=k: frame_seed(STAGE, PRODUCER, k, ordinal), first_ordinal=first
            )
            begin = int(entry["offset"])
            decoder.feed(data[begin : begin + int(entry["length"])])
            while (frame := decoder.next_record()) is not NEED_DATA:
                part = decode_frame(frame, STORED, position=0)
                rows[k] += part.column(0).to_pylist()
                for text in part.column(1).to_pylist():
                    assert text == ("abcdefg" * (len(text) // 7 + 1))[: len(text)]
    return rows


def expected(rows: int) -> list[list[int]]:
    return [list(range(k, rows, PARTITIONS)) for k in range(PARTITIONS)]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One JVM whose heap holds a long row three times."""
    with plain_jvm(heap="1400m") as gateway:
        yield Harness(gateway, tmp_path_factory.mktemp("encoder") / "pages")


@pytest.mark.parametrize("unsafe", [True, False])
def test_rows_of_each_partition_keep_their_order(harness: Harness, unsafe: bool) -> None:
    assert numbers(harness.run(50_000, unsafe=unsafe)) == expected(50_000)
    assert harness.field("failure") == ""


def test_memory_is_spark_s_and_bounded_and_given_back(harness: Harness) -> None:
    batch = harness.run(300_000, length=100, memory_bytes=8 * MIB)
    assert len(segments(batch)) == 6
    assert 7 * MIB < harness.field("most") < 12 * MIB
    assert harness.kept == 0


def test_a_segment_is_cut_where_spark_has_no_more_memory(harness: Harness) -> None:
    batch = harness.run(100_000, length=100, memory_bytes=64 * MIB, spark_bytes=3 * MIB)
    assert numbers(batch) == expected(100_000)
    assert len(segments(batch)) > 4
    assert harness.field("most") <= 3 * MIB
    assert harness.kept == 0


def test_without_any_memory_segments_are_small_but_not_tiny(harness: Harness) -> None:
    batch = harness.run(50_000, length=50, spark_bytes=4096)
    assert numbers(batch) == expected(50_000)
    assert len(segments(batch)) == 6
    assert harness.field("most") <= 4096
    assert harness.kept == 0


@pytest.mark.parametrize("spark_mib", [8, 12])
def test_another_consumer_gets_the_memory_that_it_asks_for(
    harness: Harness, spark_mib: int
) -> None:
    hog, spark_bytes = (60_000, 8 * MIB), spark_mib * MIB
    batch = harness.run(70_000, length=50, memory_bytes=6 * MIB, spark_bytes=spark_bytes, hog=hog)
    assert harness.field("failure") == ""
    assert harness.field("taken") == 8 * MIB
    assert numbers(batch) == expected(70_000)
    assert harness.kept == 0


@pytest.mark.soak
@pytest.mark.parametrize("max_frame_mib", [256, 16])
def test_a_row_of_300_mb(harness: Harness, max_frame_mib: int) -> None:
    long = (11, 300_000_000)
    batch = harness.run(20, special=long, max_frame_bytes=max_frame_mib * MIB)
    assert harness.field("failure") == ""
    assert numbers(batch, max_frame_mib * MIB) == expected(20)


def test_a_killed_task_ends_and_gives_its_memory_back(harness: Harness) -> None:
    harness.run(1_000_000, kill_at=100_000)
    assert "TaskKilledException" in harness.field("failure")
    assert harness.kept == 0


@pytest.fixture(scope="module")
def written(harness: Harness) -> pa.RecordBatch:
    """Rows in two segments."""
    batch = harness.run(60_000, length=100)
    assert len(segments(batch)) == 3
    return batch


def test_lost_and_doubled_pages_are_noticed(written: pa.RecordBatch) -> None:
    rows = written.num_rows
    for i in range(rows):
        before, at, after = written.slice(0, i), written.slice(i, 1), written.slice(i + 1)
        for parts in ([before, after], [before, at, at, after], [before]):
            table = pa.Table.from_batches(parts).combine_chunks().to_batches()
            with pytest.raises(CorruptDataError, match=r"between Spark's JVM .* producer=3"):
                segments(table[0] if table else written.slice(0, 0))


def test_changed_bytes_are_noticed(written: pa.RecordBatch, seed: int) -> None:
    chosen = random.Random(seed)
    for _ in range(200):
        columns = [column.to_pylist() for column in written.columns]
        column = chosen.choice(columns[1:])
        i = chosen.choice([i for i, value in enumerate(column) if value])
        data = bytearray(column[i])
        place = chosen.randrange(8 if column is columns[2] and columns[0][i] >= 0 else 0, len(data))
        data[place] ^= 1 << chosen.randrange(8)
        column[i] = bytes(data)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, PAGES, strict=True)]
        with pytest.raises(CorruptDataError, match="between Spark's JVM"):
            segments(pa.RecordBatch.from_arrays(arrays, schema=PAGES))
