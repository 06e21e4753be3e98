"""Hashes and partition ids against a scalar reference written from the public algorithm."""

import datetime as dt
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.rows import murmur3, partitioner
from durable_shuffle.shuffle.rows.spark_hash import check_key_type, spark_hash

# --- the reference: MurmurHash3_x86_32 on Python integers, with Spark's treatment of the tail ---


def rotl(x: int, r: int) -> int:
    return ((x << r) | (x >> (32 - r))) & 0xFFFFFFFF


def step(h: int, k: int) -> int:
    k = rotl(k * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    return (rotl(h ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF


def finish(h: int, length: int) -> int:
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def ref_bytes(h: int, data: bytes) -> int:
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        h = step(h, struct.unpack_from("<I", data, at)[0])
    for byte in data[whole:]:
        h = step(h, (byte - 256 if byte > 127 else byte) & 0xFFFFFFFF)
    return finish(h, len(data))


def ref_int(h: int, value: int) -> int:
    return ref_bytes(h, struct.pack("<i", value))


def ref_long(h: int, value: int) -> int:
    return ref_bytes(h, struct.pack("<q", value))


def ref_float(h: int, value: float, layout: str = "<f") -> int:
    return ref_bytes(h, struct.pack(layout, 0.0 if value == 0 else value))


def ref_double(h: int, value: float) -> int:
    return ref_float(h, value, "<d")


def ref_unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    return (-1 if sign else 1) * int("".join(map(str, digits)))


def ref_big_decimal(h: int, value: Decimal) -> int:
    unscaled = ref_unscaled(value)
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return ref_bytes(h, unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True))


def ref_list(element: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    def fold(h: int, values: list[Any]) -> int:
        for value in values:
            h = h if value is None else element(h, value)
        return h

    return fold


def ref_column(values: list[Any], one: Callable[[int, Any], int], seed: int = 42) -> list[int]:
    hashes = (seed & 0xFFFFFFFF if v is None else one(seed & 0xFFFFFFFF, v) for v in values)
    return [h - 2**32 if h >= 2**31 else h for h in hashes]


# --- primitives ---

PUBLISHED = [  # whole words only: there Spark and the published algorithm agree
    (b"", 0, 0),
    (b"", 1, 0x514E28B7),
    (b"", 0xFFFFFFFF, 0x81F16F39),
    (b"\xff\xff\xff\xff", 0, 0x76293B50),
    (b"\x21\x43\x65\x87", 0, 0xF55B516B),
    (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
    (b"\x00\x00\x00\x00", 0, 0x2362F9DE),
    (b"aaaa", 0x9747B28C, 0x5A97808A),
    (b"abcd", 0x9747B28C, 0xF0478627),
]


@pytest.mark.parametrize(("data", "seed", "expected"), PUBLISHED)
def test_byte_strings_match_the_published_vectors(data: bytes, seed: int, expected: int) -> None:
    """The published vectors come out, from the code and from the reference that judges it."""
    start, length = np.array([0], np.intp), np.array([len(data)], np.intp)
    raw = np.frombuffer(data, np.uint8)
    hashed = murmur3.hash_bytes(np.array([seed], np.uint32), raw, start, length)
    assert hashed.tolist() == [expected]
    assert ref_bytes(seed, data) == expected


def test_integers_match_the_vectors_of_sparks_own_suite() -> None:
    """The vectors that Spark tests its Java implementation with come out."""
    ints = np.array([0, -42, 42, -(2**31), 2**31 - 1], np.int32).view(np.uint32)
    longs = np.array([0, -42, 42, -(2**63), 2**63 - 1], np.int64).view(np.uint64)
    zeros = np.zeros(5, np.uint32)
    of_ints = [593689054, -189366624, -1134849565, -1718298732, -1653689534]
    of_longs = [1669671676, -846261623, 1871679806, 1366273829, -2106506049]
    assert murmur3.hash_ints(zeros, ints).view(np.int32).tolist() == of_ints
    assert murmur3.hash_longs(zeros, longs).view(np.int32).tolist() == of_longs


def test_columns_chain_as_in_the_documentation_of_spark() -> None:
    """The example in Spark's documentation of `hash` comes out: the columns chain."""
    columns = [pa.array(["Spark"]), pa.array([[123]], pa.list_(pa.int32())), pa.array([2], "int32")]
    assert spark_hash(columns).tolist() == [-1321691492]


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 500])
def test_strings_of_all_lengths(rows: int) -> None:
    """Every length and tail, few rows (finished one by one) and many (side by side)."""
    rng = random.Random(rows)
    values = [rng.randbytes(rng.randrange(40)) for _ in range(rows)]
    assert spark_hash([pa.array(values)]).tolist() == ref_column(values, ref_bytes)


@pytest.mark.parametrize("length", [65_534, 65_535, 65_536, 65_543, 300_001])
def test_long_strings_among_short_ones(length: int) -> None:
    """Strings beyond the limits of the sort key and of one piece hash right, and so do others."""
    rng = random.Random(length)
    values = [b"abc", rng.randbytes(length), b"", rng.randbytes(length + 4), rng.randbytes(9)]
    assert spark_hash([pa.array(values)]).tolist() == ref_column(values, ref_bytes)


def test_many_strings_beyond_the_sort_key_keep_their_own_order() -> None:
    """Rows that sort as equals although their lengths differ are each hashed to their own end."""
    rng = random.Random(5)
    values = [rng.randbytes(65_536 if i < 3 else 65_544) for i in range(70)]
    assert spark_hash([pa.array(values)]).tolist() == ref_column(values, ref_bytes)


def test_more_rows_than_one_chunk() -> None:
    """Rows on both sides of every chunk border keep their place."""
    values = np.random.default_rng(3).integers(-(2**63), 2**63, 100_001)
    hashes = spark_hash([pa.array(values)])
    at = [0, 32_767, 32_768, 65_535, 65_536, 98_303, 98_304, 100_000]
    assert hashes[at].tolist() == ref_column([int(values[i]) for i in at], ref_long)
    assert len(hashes) == 100_001


# --- Arrow layouts ---

TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "abcd",
    None,
    "grüße",
    "漢字かな",
    "🙂",
    "x" * 100,
    "\x00",
    "longer one",
]
BINARIES = [None if text is None else text.encode() for text in TEXTS]
LISTS = [[1, None, -3], [], None, [7], [2**31 - 1] * 5, [None], [0, 0], [5, 6, 7, 8, 9, 10, 11]]
PAIRS = [[1, 2], None, [3, None], [None, None], [-1, 0]]
WIDE = [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, -32769, 2**63, -(2**63)]
DECIMALS = [Decimal(f"{v}E-3") for v in [*WIDE, 2**64, -(2**64), 10**38 - 1, 1 - 10**38]]


def ref_text(h: int, text: str) -> int:
    return ref_bytes(h, text.encode())


def ref_days(h: int, day: dt.date) -> int:
    return ref_int(h, (day - dt.date(1970, 1, 1)).days)


def ref_delta(h: int, delta: dt.timedelta) -> int:
    return ref_long(h, delta // dt.timedelta(microseconds=1))


def ref_micros(h: int, moment: dt.datetime) -> int:
    return ref_delta(h, moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC))


def ref_time(h: int, time: dt.time) -> int:
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    return ref_long(h, (seconds * 10**6 + time.microsecond) * 1000)


def ref_interval(h: int, value: tuple[int, int, int]) -> int:
    months, days, nanos = value
    return ref_int(ref_int(ref_long(h, nanos // 1000), days), months)


def ref_row(h: int, row: dict[str, Any]) -> int:
    h = h if row["a"] is None else ref_long(h, row["a"])
    return h if row["b"] is None else ref_text(h, row["b"])


ROWS = [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": None, "b": None}, {"a": 4, "b": ""}]
NUMBERS = [0, 1, -1, None, 127, -128, 100]
FLOATS = [0.0, -0.0, 1.5, -2.25, None, float("inf"), float("-inf"), float("nan")]
MOMENTS = [dt.datetime(y, 2, 28, 1, 2, 3, 4, dt.UTC) if y else None for y in (1, 0, 2024)]
INTERVALS = [(1, 2, 3000), None, (-14, 0, -(10**15)), (0, -5, 0)]

STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
ROW = pa.struct([("a", pa.int64()), ("b", pa.string())])
NARROW = [Decimal("-1.500"), None, Decimal("999999999999999.999")]

TYPED: list[tuple[pa.DataType, list[Any], Callable[[int, Any], int]]] = [
    (pa.bool_(), [True, False, None, True] * 5, ref_int),
    (pa.int8(), NUMBERS, ref_int),
    (pa.int16(), NUMBERS, ref_int),
    (pa.int32(), [*NUMBERS, 2**31 - 1, -(2**31)], ref_int),
    (pa.int64(), [*NUMBERS, 2**63 - 1, -(2**63)], ref_long),
    (pa.float32(), FLOATS, ref_float),
    (pa.float64(), FLOATS, ref_double),
    (pa.decimal128(18, 3), NARROW, lambda h, value: ref_long(h, ref_unscaled(value))),
    (pa.decimal128(38, 3), [*DECIMALS, None], ref_big_decimal),
    *((kind, TEXTS, ref_text) for kind in STRINGS),
    *((kind, BINARIES, ref_bytes) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(3), [b"\xff12", None, b"abc", b"\x00\x80z"], ref_bytes),
    (pa.date32(), [dt.date(1, 1, 1), None, dt.date(2024, 2, 29)], ref_days),
    (pa.timestamp("us", "UTC"), MOMENTS, ref_micros),
    (pa.duration("us"), [dt.timedelta(-3, 5, 7), None, dt.timedelta(99)], ref_delta),
    (pa.time64("ns"), [dt.time(1, 2, 3), None, dt.time.max], ref_time),
    (pa.month_day_nano_interval(), INTERVALS, ref_interval),
    (pa.null(), [None] * 6, ref_int),
    (pa.list_(pa.int32()), LISTS, ref_list(ref_int)),
    (pa.large_list(pa.int32()), LISTS, ref_list(ref_int)),
    (pa.list_(pa.int32(), 2), PAIRS, ref_list(ref_int)),
    (pa.list_(pa.list_(pa.int64())), [LISTS, None, [], LISTS[:2]], ref_list(ref_list(ref_long))),
    (pa.list_(pa.string()), [TEXTS, [], TEXTS[3:]], ref_list(ref_text)),
    (ROW, ROWS, ref_row),
    (pa.list_(ROW), [ROWS, None, ROWS[1:3]], ref_list(ref_row)),
]
CASES: dict[str, tuple[pa.Array, Callable[[int, Any], int]]] = {
    **{str(kind): (pa.array(values, kind), one) for kind, values, one in TYPED},
    "dictionary": (pa.array(TEXTS * 2).dictionary_encode(), ref_text),
    "all_null": (pa.nulls(6, pa.int64()), ref_long),
}


@pytest.mark.parametrize("name", CASES)
def test_arrow_layouts_whole_sliced_and_chunked(name: str) -> None:
    """Every layout hashes like its values, also where an array begins inside its buffers."""
    array, one = CASES[name]
    values = array.to_pylist()
    check_key_type("k", array.type)
    for first in range(len(array) + 1):
        for last in (first, len(array) - 1, len(array)):
            if first <= last:
                expected = ref_column(values[first:last], one)
                assert spark_hash([array[first:last]]).tolist() == expected
    pieces = pa.chunked_array([array[:2], array[2:2], array[2:]])
    assert spark_hash([pieces], seed=-7).tolist() == ref_column(values, one, -7)


def test_values_under_a_null_do_not_count() -> None:
    """What lies in the buffers under a null list, struct or string has no effect."""
    mask = pa.array([True, False])
    string = [b"\x02", np.array([0, 2, 3], np.int32), b"abc"]
    child = pa.array([1, 2, 3], pa.int64())
    hidden = [
        pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), child, mask=mask),
        pa.FixedSizeListArray.from_arrays(child[1:], 1, mask=mask),
        pa.StructArray.from_arrays([child[1:]], ["a"], mask=mask),
        pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(raw) for raw in string], 1),
    ]
    expected = [ref_long(42, 3)] * 3 + [ref_text(42, "c")]
    hashed = [spark_hash([array]).view(np.uint32).tolist() for array in hidden]
    assert hashed == [[42, second] for second in expected]


def test_all_nans_and_both_zeros_hash_alike() -> None:
    """Signalling, negative and payload-carrying NaNs hash like the one NaN that Java has."""
    nans32 = np.array([0x7FC00000, 0x7F800001, 0xFFC00000, 0xFF800123, 0x7FFFFFFF], np.uint32)
    nans64 = np.array([0x7FF8 << 48, (0x7FF0 << 48) + 1, 0xFFF8 << 48, 2**64 - 1], np.uint64)
    single, double = bytes.fromhex("0000c07f"), bytes.fromhex("000000000000f87f")
    for bits, kind, nan in (nans32, pa.float32(), single), (nans64, pa.float64(), double):
        array = pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(bits)])
        assert set(spark_hash([array]).view(np.uint32).tolist()) == {ref_bytes(42, nan)}
    assert spark_hash([pa.array([0.0, -0.0])]).tolist() == ref_column([0, 0], ref_long)


def test_columns_with_different_chunks_line_up() -> None:
    """Columns that are cut at different rows are hashed row by row all the same."""
    longs = list(range(10))
    texts = [f"t{i}" for i in longs]
    cut_longs = pa.chunked_array([longs[:3], longs[3:]])
    columns = [cut_longs, pa.chunked_array([texts[:7], texts[7:]]), pa.array(longs)]
    expected = [ref_long(ref_text(ref_long(42, i), t), i) for i, t in enumerate(texts)]
    assert spark_hash(columns).view(np.uint32).tolist() == expected


# --- refusals ---

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary()),
        pa.field("metadata", pa.binary(), metadata={"variant": "true"}),
    ]
)
MAP = pa.map_(pa.string(), pa.int64())
UNITS = [pa.timestamp("ns"), pa.duration("s"), pa.time64("us"), pa.time32("ms"), pa.date64()]
NESTED = [pa.list_(MAP), pa.struct([("v", pa.list_(VARIANT))])]
REFUSED = [MAP, VARIANT, *NESTED, *UNITS, pa.uint32(), pa.float16(), pa.decimal256(40, 0)]


@pytest.mark.parametrize("data_type", REFUSED, ids=str)
def test_types_without_a_spark_hash_are_refused_by_name(data_type: pa.DataType) -> None:
    """The message names the column and the type, also for a type deep inside."""
    with pytest.raises(InvalidInputError, match="key column total has a type") as caught:
        check_key_type("total", data_type)
    assert str(data_type) in str(caught.value) or "variant" in str(caught.value)
    with pytest.raises(InvalidInputError, match="key column #1 has a type"):
        spark_hash([pa.nulls(1), pa.nulls(1, data_type)])


def test_misuse_of_the_hash_is_refused() -> None:
    """No columns, different lengths and a seed beyond 32 bits are the caller's errors."""
    with pytest.raises(InvalidInputError, match="at least one column"):
        spark_hash([])
    with pytest.raises(InvalidInputError, match=r"\[1, 2\]"):
        spark_hash([pa.array([1]), pa.array([1, 2])])
    with pytest.raises(InvalidInputError, match="4294967296"):
        spark_hash([pa.array([1])], seed=2**32)


# --- partition ids ---


@pytest.mark.parametrize("partitions", [1, 2, 7, 200, 65_536, 65_537, partitioner.MAX_PARTITIONS])
def test_ids_are_the_hash_modulo_the_count_never_negative(partitions: int) -> None:
    """Negative hashes wrap upwards; the ids are as narrow as the count allows."""
    values = list(range(-500, 500))
    ids = partitioner.hash_partition_ids([pa.array(values, pa.int64())], partitions)
    assert ids.tolist() == [h % partitions for h in ref_column(values, ref_long)]
    assert ids.dtype == (np.uint16 if partitions <= 65_536 else np.uint32)


def test_round_robin_deals_in_turn_from_the_start() -> None:
    """Row i goes to (start + i) mod n, also from a start beyond n."""
    assert partitioner.round_robin_ids(2, 7, 3).tolist() == [2, 0, 1, 2, 0, 1, 2]
    assert partitioner.round_robin_ids(10**20 + 1, 3, 4).tolist() == [1, 2, 3]
    assert partitioner.round_robin_ids(0, 0, 65_536).dtype == np.uint16
    assert partitioner.round_robin_ids(65_536, 2, 65_537).tolist() == [65_536, 0]
    assert partitioner.round_robin_ids(0, 0, 65_537).dtype == np.uint32
    with pytest.raises(InvalidInputError, match="-1"):
        partitioner.round_robin_ids(0, -1, 4)


@pytest.mark.parametrize("partitions", [1, 3, 65_536, 65_537, 200_000])
def test_counting_sort_groups_and_keeps_the_order(partitions: int) -> None:
    """The order is that of Python's stable sort; every partition has a count, also of 0 rows."""
    rng = random.Random(partitions)
    pool = [rng.randrange(partitions) for _ in range(50)] + [0, partitions - 1]
    ids = [rng.choice(pool) for _ in range(2_000)]
    kind = np.uint16 if partitions <= 65_536 else np.uint32
    order, counts = partitioner.counting_sort(np.array(ids, kind), partitions)
    assert order.tolist() == sorted(range(len(ids)), key=ids.__getitem__)
    assert len(counts) == partitions
    assert counts.dtype == np.int64
    nothing, zeros = partitioner.counting_sort(np.array([], kind), partitions)
    assert (len(nothing), len(zeros), zeros.any()) == (0, partitions, False)
    assert {k: int(n) for k, n in enumerate(counts) if n} == {k: ids.count(k) for k in set(ids)}


def test_counting_sort_refuses_wrong_ids() -> None:
    """An id that has no partition, or ids of another width, are the caller's error."""
    with pytest.raises(InvalidInputError, match="id 3 is not below 3"):
        partitioner.counting_sort(np.array([0, 3], np.uint16), 3)
    with pytest.raises(InvalidInputError, match="int64"):
        partitioner.counting_sort(np.array([0, 1]), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, partitioner.MAX_PARTITIONS + 1, True, 2.0, "8", None])
def test_bad_partition_counts_are_refused(count: Any) -> None:
    """Counts beyond the limits, not at them, and what only looks like a count, are named."""
    partitioner.check_partition_count(1)
    partitioner.check_partition_count(partitioner.MAX_PARTITIONS)
    with pytest.raises(InvalidInputError, match=str(count)):
        partitioner.check_partition_count(count)
    with pytest.raises(InvalidInputError, match="partition count"):
        partitioner.hash_partition_ids([pa.array([1])], count)
