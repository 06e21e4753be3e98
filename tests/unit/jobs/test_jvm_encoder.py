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
EXTENTS = 1
"""The kind of a piece that has a segment's extents."""
STORED = pa.schema([("number", pa.int64()), ("text", pa.string())])


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
    ) -> list[bytes]:
        """Return the pieces that the encoder yields."""
        references = self._gateway.new_array(self._gateway.jvm.java.lang.Object, 10)
        wanted, most = min(MIB, max_frame_bytes // 4), max_frame_bytes
        values = ["8s", PARTITIONS, "computed", STAGE, memory_bytes, wanted, most, "lz4"]
        for i, value in enumerate(values):
            references[i] = value
        self.kept = self._java.run(
            *(references, str(self._path), spark_bytes, rows, length),
            *(*special, *hog, kill_at, unsafe),
        )
        return read_pieces(self._path)

    def field(self, name: str) -> Any:
        return self._java.getClass().getField(name).get(self._java)


def read_pieces(path: Path) -> list[bytes]:
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def segments(pieces: list[bytes], max_frame_bytes: int = 256 * MIB) -> list[Segment]:
    """Return the segments, checked."""
    found = JvmSegments(pieces, PRODUCER, STAGE, PARTITIONS, max_frame_bytes)
    return [segment for segment, _ in found]


def numbers(pieces: list[bytes], max_frame_bytes: int = 256 * MIB) -> list[list[int]]:
    """Return the numbers of the rows of each partition; each text is checked."""
    rows: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for segment in segments(pieces, max_frame_bytes):
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
    pieces = harness.run(300_000, length=100, memory_bytes=8 * MIB)
    assert len(segments(pieces)) == 6
    assert 7 * MIB < harness.field("most") < 12 * MIB
    assert harness.kept == 0


def test_a_segment_is_cut_where_spark_has_no_more_memory(harness: Harness) -> None:
    pieces = harness.run(100_000, length=100, memory_bytes=64 * MIB, spark_bytes=3 * MIB)
    assert numbers(pieces) == expected(100_000)
    assert len(segments(pieces)) > 4
    assert harness.field("most") <= 3 * MIB
    assert harness.kept == 0


def test_without_any_memory_segments_are_small_but_not_tiny(harness: Harness) -> None:
    pieces = harness.run(50_000, length=50, spark_bytes=4096)
    assert numbers(pieces) == expected(50_000)
    assert len(segments(pieces)) == 6
    assert harness.field("most") <= 4096
    assert harness.kept == 0


@pytest.mark.parametrize("spark_mib", [8, 12])
def test_another_consumer_gets_the_memory_that_it_asks_for(
    harness: Harness, spark_mib: int
) -> None:
    hog, spark_bytes = (60_000, 8 * MIB), spark_mib * MIB
    pieces = harness.run(70_000, length=50, memory_bytes=6 * MIB, spark_bytes=spark_bytes, hog=hog)
    assert harness.field("failure") == ""
    assert harness.field("taken") == 8 * MIB
    assert numbers(pieces) == expected(70_000)
    assert harness.kept == 0


@pytest.mark.soak
@pytest.mark.parametrize("max_frame_mib", [256, 16])
def test_a_row_of_300_mb(harness: Harness, max_frame_mib: int) -> None:
    long = (11, 300_000_000)
    pieces = harness.run(20, special=long, max_frame_bytes=max_frame_mib * MIB)
    assert harness.field("failure") == ""
    assert numbers(pieces, max_frame_mib * MIB) == expected(20)


def test_a_killed_task_ends_and_gives_its_memory_back(harness: Harness) -> None:
    harness.run(1_000_000, kill_at=100_000)
    assert "TaskKilledException" in harness.field("failure")
    assert harness.kept == 0


@pytest.fixture(scope="module")
def written(harness: Harness) -> list[bytes]:
    """Rows in three segments."""
    pieces = harness.run(60_000, length=100)
    assert len(segments(pieces)) == 3
    return pieces


def test_lost_and_doubled_pieces_are_noticed(written: list[bytes]) -> None:
    for i in range(len(written)):
        before, at, after = written[:i], written[i : i + 1], written[i + 1 :]
        for pieces in (before + after, before + at + at + after, before):
            with pytest.raises(CorruptDataError, match=r"between Spark's JVM .* producer=3"):
                segments(pieces)


@pytest.mark.parametrize("length", [0, 7, 8, 15])
def test_a_short_piece_is_noticed(written: list[bytes], length: int) -> None:
    for i, piece in enumerate(written):
        if len(piece) > length:
            with pytest.raises(CorruptDataError, match="between Spark's JVM"):
                segments([*written[:i], piece[:length], *written[i + 1 :]])


def test_changed_bytes_are_noticed(written: list[bytes], seed: int) -> None:
    chosen = random.Random(seed)
    for _ in range(200):
        i = chosen.randrange(len(written))
        data = bytearray(written[i])
        kind = data[4]
        # not the bytes that say how much memory the columns take
        places = [n for n in range(len(data)) if kind != EXTENTS or not 8 <= n < 16]
        data[chosen.choice(places)] ^= 1 << chosen.randrange(8)
        with pytest.raises(CorruptDataError, match="between Spark's JVM"):
            segments([*written[:i], bytes(data), *written[i + 1 :]])
