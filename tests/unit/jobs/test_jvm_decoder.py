"""The Java decoder in a JVM without Spark: rows of every kind, lost blocks, damaged frames.

With `checked` memory each access must lie inside its array (`CheckedMemory.java`).
"""

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from plain_jvm import byte_arrays, java_class, new_object, plain_jvm
from py4j.protocol import Py4JJavaError
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DecimalType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)
from random_rows import random_batch, random_schema

from durable_shuffle.jobs.engine.arrow_schema import narrow_arrow_schema
from durable_shuffle.jobs.jvm_rows.blocks import blocks_of, raw_frame
from durable_shuffle.jobs.jvm_rows.decoder import decoder_text
from durable_shuffle.jobs.jvm_rows.kinds import column_kinds
from durable_shuffle.serialization.arrow_checks import MAX_INFLATED_BYTES
from durable_shuffle.serialization.arrow_codec import encode_slices
from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.serialization.frames import Frame, FrameKind

pytestmark = pytest.mark.spark

_BLOCK_BYTES, _HEADERS_BYTES = 1 << 20, 16 + 16
"""A block that holds a small frame whole; the headers before the message in it."""
FEW, MANY = 20_000, 1_000_000

Harness = Callable[..., Any]


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """A JVM with a small heap."""
    with plain_jvm(heap="384m") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def harness(jvm: Any) -> Harness:
    """Return a function that compiles the decoder for a schema."""
    found = java_class(jvm, "CheckedMemory", "DecoderHarness")

    def compiled(schema: StructType, *, checked: bool = True) -> Any:
        kinds = column_kinds(schema, narrow_arrow_schema(schema))
        arguments = [decoder_text(), kinds, schema.json(), MAX_INFLATED_BYTES, checked]
        return new_object(jvm, found, arguments)

    return compiled


def frames(batch: pa.RecordBatch, compression: str, rows: int | None = None) -> list[Frame]:
    """Return frames of so many rows each."""
    step = max(1, rows or batch.num_rows)
    starts = range(0, max(1, batch.num_rows), step)
    bounds = [(start, min(step, batch.num_rows - start)) for start in starts]
    bodies = encode_slices(batch, bounds, compression)
    return [
        Frame(FrameKind.ARROW, 0, rows, memoryview(bytes(body)))
        for body, (_, rows) in zip(bodies, bounds, strict=True)
    ]


def blocks(found: Sequence[Frame | str], block_bytes: int = _BLOCK_BYTES) -> list[bytes]:
    """Return the blocks of a task."""
    return list(blocks_of(iter(found), block_bytes=block_bytes))


def schema_of(*kinds: DataType) -> StructType:
    return StructType([StructField(f"k{i}", kind) for i, kind in enumerate(kinds)])


def simple(schema: StructType, columns: list[list[Any]]) -> pa.RecordBatch:
    """Return a batch in the stored form."""
    stored = narrow_arrow_schema(schema)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, stored, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=stored)


FLAT = schema_of(LongType(), StringType(), BooleanType(), DecimalType(9, 2), DecimalType(30, 1))
FLAT_ROWS = simple(
    FLAT,
    [
        [1, None, -(2**63)],
        ["", "é€🙂", None],
        [True, None, False],
        [-125, None, 999_999_999],
        [None, Decimal("99999999999999999999999999999.9"), Decimal("-0.1")],
    ],
)
FLAT_TEXTS = [
    "ArraySeq(1, , true, -1.25, null)",
    "ArraySeq(null, é€🙂, null, null, 99999999999999999999999999999.9)",
    "ArraySeq(-9223372036854775808, null, false, 9999999.99, -0.1)",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "plain"])
@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_rows_of_flat_columns(
    jvm: Any, harness: Harness, compression: str, *, checked: bool
) -> None:
    """Rows that are kept after the next frame was loaded do not change."""
    found = frames(FLAT_ROWS, compression, 1) + frames(FLAT_ROWS, compression)
    given = byte_arrays(jvm, blocks(found))
    assert list(harness(FLAT, checked=checked).texts(given)) == FLAT_TEXTS * 2


@pytest.mark.parametrize("block_bytes", [17, 40, 1000])
def test_frames_are_cut_anywhere(jvm: Any, harness: Harness, block_bytes: int) -> None:
    """Frames of any length pass through blocks of any length."""
    cut = blocks(frames(FLAT_ROWS, "lz4", 2), block_bytes)
    assert max(map(len, cut)) <= max(block_bytes, _HEADERS_BYTES)
    assert list(harness(FLAT).texts(byte_arrays(jvm, cut))) == FLAT_TEXTS


def test_random_rows_are_the_same_however_compressed(jvm: Any, harness: Harness, seed: int) -> None:
    """Rows of frames with LZ4, with zstd and with neither are equal, bytes for bytes."""
    rng = random.Random(seed)
    for _ in range(20):
        schema = random_schema(rng, columns=rng.choice((0, 1, 5, 30)), depth=3)
        batch = random_batch(rng, narrow_arrow_schema(schema), rng.choice((0, 1, 70, 300)))
        read = harness(schema)
        rows = {
            compression: bytes(read.rows(byte_arrays(jvm, blocks(frames(batch, compression, 80)))))
            for compression in ("lz4", "zstd", "none")
        }
        assert rows["lz4"] == rows["none"], schema
        assert rows["zstd"] == rows["none"], schema
        assert bool(rows["none"]) == bool(len(schema) and batch.num_rows)


def texts_of_linked_blocks(rng: random.Random, rows: int) -> tuple[StructType, pa.RecordBatch]:
    """Return rows with buffers over 64 KB, in which pyarrow's LZ4 blocks refer to earlier ones."""
    schema = schema_of(LongType(), StringType())
    words = ["".join(rng.choices("abcdef", k=rng.randint(1, 40))) for _ in range(50)]
    spread = rng.choice((3, 300, 2**60))
    numbers = [rng.randrange(spread) for _ in range(rows)]
    texts = [rng.choice(words) * rng.choice((0, 1, 1, 9)) for _ in numbers]
    return schema, simple(schema, [numbers, texts])


def test_linked_lz4_blocks(jvm: Any, harness: Harness, seed: int) -> None:
    """LZ4 blocks that lz4-java cannot decode."""
    rng = random.Random(seed)
    for _ in range(3):
        schema, batch = texts_of_linked_blocks(rng, 40_000)
        linked = frames(batch, "lz4")
        assert bytes(linked[0].body).find(b"\x04\x22\x4d\x18\x40") > 0
        read = harness(schema)
        expected = bytes(read.rows(byte_arrays(jvm, blocks(frames(batch, "none")))))
        assert bytes(read.rows(byte_arrays(jvm, blocks(linked)))) == expected


def test_rows_without_columns(jvm: Any, harness: Harness) -> None:
    """Only their number arrives."""
    batch = random_batch(random.Random(0), pa.schema([]), 5)
    read = harness(StructType())
    texts = read.texts(byte_arrays(jvm, blocks(frames(batch, "lz4", 3))))
    assert list(texts) == ["ArraySeq()"] * 5


def test_no_frames(jvm: Any, harness: Harness) -> None:
    """A task without rows sends one block."""
    assert len(blocks([])) == 1
    assert not list(harness(FLAT).texts(byte_arrays(jvm, blocks([]))))


def lost(jvm: Any, read: Any, given: list[bytes], expected: str) -> None:
    with pytest.raises(Py4JJavaError, match=expected) as error:
        read.rows(byte_arrays(jvm, given))
    assert "rows were lost between a Python worker and Spark's JVM" in str(error.value)
    assert "partition=0" in str(error.value)


def test_lost_blocks_are_noticed(jvm: Any, harness: Harness) -> None:
    """Each block is counted, and all rows."""
    read = harness(FLAT)
    sound = blocks(frames(FLAT_ROWS, "none", 1), 100)
    for n in range(len(sound) - 1):
        without = sound[:n] + sound[n + 1 :]
        lost(jvm, read, without, f"expected block {n}, found {n + 1}")
    lost(jvm, read, sound[:-1], "the last block is missing")
    lost(jvm, read, [], "the last block is missing")
    lost(jvm, read, [sound[0], *sound], "expected block 1, found 0")
    lost(jvm, read, [*sound, sound[0]], "a block follows the last one")
    other = struct.pack("<QQQQ", len(sound) - 1, 1, 3, 4)
    lost(jvm, read, [*sound[:-1], other], "expected 3 frames of 4 rows, found 3 of 3")
    early = struct.pack("<QQQQ", 1, 1, 0, 0)
    lost(jvm, read, [sound[0], early], "middle of a frame")
    lost(jvm, read, [sound[0][:9]], "block of 9 bytes")
    lost(jvm, read, [sound[0][:8] + bytes([2]) + sound[0][9:]], "unknown flags 2")


def test_frames_of_another_kind_are_refused() -> None:
    """Objects are not stored as Arrow batches."""
    frame = Frame(FrameKind.MSGPACK, 0, 1, memoryview(b"\x90"))
    with pytest.raises(IncompatibleError, match="frame at byte 24: frame of kind MSGPACK"):
        raw_frame(frame, 24, 0)


def test_each_frame_is_checked(jvm: Any, harness: Harness) -> None:
    """Numbers of rows, nulls and bytes, and offsets, in a frame with a right checksum."""
    schema = schema_of(StringType())
    read = harness(schema)
    (sound,) = frames(simple(schema, [["ab", None, "c"]]), "none")
    texts = {
        "it states 2 rows and holds 3": Frame(FrameKind.ARROW, 0, 2, sound.body),
        "no Arrow message": Frame(FrameKind.ARROW, 0, 3, sound.body[8:]),
        "its body should have": Frame(FrameKind.ARROW, 0, 3, sound.body[:-8]),
        "says 1 nulls and has 0": changed(sound, b"\x05" + bytes(7), b"\x07" + bytes(7)),
        "lead out of": changed(sound, struct.pack("<ii", 2, 3), struct.pack("<ii", 2, 300)),
        "offsets of a column": changed(sound, struct.pack("<ii", 0, 2), struct.pack("<ii", 3, 2)),
    }
    for text, frame in texts.items():
        ours = rf"errors\.CorruptDataError: damaged frame: .*{text}"
        with pytest.raises(Py4JJavaError, match=ours + ".*: frame 1 of its task"):
            read.rows(byte_arrays(jvm, blocks([frame])))
        placed = [sound, "segment='s/d'", sound, "segment='s/é' bytes=[0, 9)", sound, frame]
        with pytest.raises(Py4JJavaError, match=ours + ".*: frame 2 of segment='s/é' bytes"):
            read.rows(byte_arrays(jvm, blocks(placed, 40)))


def changed(frame: Frame, before: bytes, after: bytes) -> Frame:
    body = bytes(frame.body)
    assert before in body
    at = body.rindex(before)
    return Frame(
        frame.kind, 0, frame.rows, memoryview(body[:at] + after + body[at + len(before) :])
    )


def test_a_bomb_takes_no_memory(jvm: Any, harness: Harness) -> None:
    """Values without bytes are counted, and the sizes that compressed buffers state."""
    rows = MAX_INFLATED_BYTES // 8 + 1
    nulls = pa.RecordBatch.from_arrays([pa.nulls(3)], names=["c0"])
    (frame,) = frames(nulls, "lz4")
    body = bytes(frame.body).replace(struct.pack("<q", 3), struct.pack("<q", rows))
    bomb = Frame(FrameKind.ARROW, 0, rows, memoryview(body))
    read = harness(schema_of(NullType()))
    with pytest.raises(Py4JJavaError, match=f"{rows} values have no bytes"):
        read.rows(byte_arrays(jvm, blocks([bomb])))
    schema = schema_of(LongType())
    (frame,) = frames(simple(schema, [[7] * 1000]), "lz4")
    for size in (2**40, 2**31, MAX_INFLATED_BYTES + 1, 64 * 2**20 - 8):
        claim = changed(frame, struct.pack("<q", 8000), struct.pack("<q", size))
        with pytest.raises(Py4JJavaError, match="damaged frame: "):
            harness(schema).rows(byte_arrays(jvm, blocks([claim])))


def fuzzed(jvm: Any, harness: Harness, seed: int, count: int, *, checked: bool) -> None:
    """Read damaged frames of random schemas: rows or our own error, and no crash."""
    rng = random.Random(seed)
    damaged = accepted = 0
    rounds = 40
    for n in range(rounds):
        if n % 4:
            schema = random_schema(rng, columns=rng.randint(1, 4), depth=3)
            batch = random_batch(rng, narrow_arrow_schema(schema), rng.choice((1, 20, 100)))
            (frame,) = frames(batch, rng.choice(("lz4", "lz4", "none", "zstd")))
        else:
            schema, batch = texts_of_linked_blocks(rng, 9_000)
            (frame,) = frames(batch, "lz4")
        read = harness(schema, checked=checked)
        block, last = blocks([frame])
        read.fuzz(block, last, _HEADERS_BYTES, seed + n, count // rounds)
        fields = read.getClass()
        other = fields.getField("firstOther").get(read)
        assert other is None, f"{schema.simpleString()}\n{other}"
        damaged += fields.getField("damaged").get(read)
        accepted += fields.getField("accepted").get(read)
    print(f"damaged={damaged} accepted={accepted}")
    assert damaged + accepted == count // rounds * rounds
    assert count // 10 < damaged < count * 9 // 10, "the harm done is too small or too large"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "plain"])
def test_damaged_frames_are_an_error(
    jvm: Any, harness: Harness, seed: int, *, checked: bool
) -> None:
    """A sample: never a crash, never an access outside an array."""
    fuzzed(jvm, harness, seed, FEW // 2, checked=checked)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "plain"])
def test_a_million_damaged_frames(jvm: Any, harness: Harness, seed: int, *, checked: bool) -> None:
    """The same, half a million inputs each."""
    fuzzed(jvm, harness, seed, MANY // 2, checked=checked)
