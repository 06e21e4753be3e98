"""What the fuzzer throws bytes at: every decoder of stored bytes, with seeds of real ones.

A target takes bytes and puts the checksums around them itself: a mutated payload with a right CRC
is what reaches an inner decoder. It may return, or raise what decoders may raise; `use` touches all
of what was decoded, as a reader would.
"""

import json
import os
import random
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from durable_shuffle.recovery.command.external import REQUESTS
from durable_shuffle.recovery.command.status import STATUSES
from durable_shuffle.recovery.pipeline.launcher import REPORTS
from durable_shuffle.recovery.pipeline.report_log import ENTRIES
from durable_shuffle.recovery.pipeline.sinks import PARKED
from durable_shuffle.serialization import control, field_types
from durable_shuffle.serialization.arrow_codec import (
    decode_batch,
    encode_slices,
    schema_from_bytes,
    schema_to_bytes,
    storable_schema,
)
from durable_shuffle.serialization.buffers import BufferCutter
from durable_shuffle.serialization.control import RecordCodec, decode_control
from durable_shuffle.serialization.decimals import logical_schema
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import Frame, FrameKind, record_parts
from durable_shuffle.serialization.markers import decode_marker
from durable_shuffle.serialization.msgpack_codec import decode_records, encode_records
from durable_shuffle.serialization.pair_codec import pack_pairs, pairs_body, unpack_pairs
from durable_shuffle.shuffle import index
from durable_shuffle.shuffle.consumer_records import CONSUMER_RECORDS
from durable_shuffle.shuffle.job_log import JobState
from durable_shuffle.shuffle.layout import (
    parse_compacted_key,
    parse_consumer_key,
    parse_segment_key,
    parse_stage_folder,
)
from durable_shuffle.shuffle.log_producer_records import LOG_PRODUCER_RECORDS, Append, parts_of
from durable_shuffle.shuffle.position import unpack_positions
from durable_shuffle.shuffle.records import (
    EXTENT,
    JOB_RECORDS,
    PRODUCER_RECORDS,
    STAGE_RECORDS,
    Claim,
    Commit,
    Seal,
    unpack_extents,
)
from durable_shuffle.shuffle.resume_set import ResumeSet, fold
from durable_shuffle.shuffle.sealed_reader import _check_joined
from durable_shuffle.shuffle.stage_fold import StageState, with_record
from durable_shuffle.shuffle.stream_offset import offset_from_json
from durable_shuffle.shuffle.verify_index import check_index

STORED = (CorruptDataError, IncompatibleError)
"""What a decoder of stored bytes may raise."""
MAX_BATCH_BYTES = 1 << 20
"""Most that an Arrow body may become here."""


@dataclass(frozen=True)
class Target:
    """One decoder."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    allowed: tuple[type[Exception], ...] = STORED
    tree: bool = False
    """Whether inputs are msgpack, to be changed value by value as well."""


def envelope(payload: bytes) -> bytes:
    """Return a control record with right length and CRC around any payload."""
    head = struct.pack("<4sHHI", control.CONTROL_MAGIC, control.CONTROL_VERSION, 0, len(payload))
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


# -- control records and what they add up to


def example(shape: Any, draw: random.Random) -> Any:
    """Return a stored value that fits a type of field."""
    match shape:
        case field_types.ScalarType():
            sizes = (0, 4, 16, 32, 40, 8)
            return {
                str: lambda: draw.choice(["a", "0" * 32, "m1", "batch", "hash", "j/m1-x/log"]),
                int: lambda: draw.choice([0, 1, 2, 3, 100, 2**32]),
                bool: lambda: draw.random() < 0.5,
                bytes: lambda: bytes(draw.choice(sizes)),
                float: lambda: 1.5,
                type(None): lambda: None,
            }[shape.stored]()
        case field_types.ChoiceType():
            return draw.choice(sorted(shape._choices))
        case field_types.TupleType():
            return [example(shape._element, draw) for _ in range(draw.randrange(3))]
        case field_types.FixedTupleType():
            return [example(element, draw) for element in shape._elements]
        case field_types.MapType():
            return {"a": example(shape._element, draw)}
        case field_types.RecordType():
            return {name: example(field, draw) for name, field in shape._fields.items()}
        case field_types.UnionType():
            return example(draw.choice(list(shape._by_stored.values())), draw)
    return None


def records_target(codecs: dict[str, RecordCodec[Any]]) -> Target:
    """Every kind of every codec, one record at a time."""
    names = sorted(codecs)
    draw = random.Random(7)
    seeds = []
    for name in names:
        for kind, shape in codecs[name]._by_kind.items():
            for _ in range(3):
                fields = example(shape, draw)
                seeds.append(msgpack.packb([names.index(name), {"fields": fields, "kind": kind}]))

    def run(data: bytes) -> None:
        found = _unpacked(data)
        if not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], int):
            return
        codec = codecs[names[found[0] % len(names)]]
        record = codec.decode(envelope(msgpack.packb(found[1])), "name")
        codec.encode(record)
        use(record)

    return Target(run, tuple(seeds), tree=True)


def use(record: Any) -> None:
    """Unpack what records hold packed."""
    if isinstance(record, Commit):
        record.extent_array()
    if isinstance(record, Append):
        extents = record.extent_array("name")
        parts_of(record, len(extents), "name")
        record.progress.ordinals(len(record.progress.next_ordinals) // 8, "name")


_FITTING = {
    "record_id": "r",
    "epoch": 1,
    "generation": 1,
    "base": 1,
    "producers": 3,
    "commit_slots": bytes(12),
    "attempts": bytes(48),
    "content_tags": bytes(96),
    "layout_version": 1,
    "job": "job",
    "fingerprint": "0" * 32,
    "incarnation": "1" * 32,
}
"""Values with which records follow one another."""


def log_target(codec: RecordCodec[Any], walk: Callable[[Iterator[Any]], None]) -> Target:
    """Sequences of records of one log, and what they add up to."""
    draw = random.Random(7)
    seeds = []
    for _ in range(40):
        kinds = draw.choices(sorted(codec._by_kind), k=draw.randrange(1, 6))
        if "SEAL" in codec._by_kind:
            kinds = ["SEAL", *kinds]
        if "OPEN" in codec._by_kind:
            kinds = ["OPEN", *kinds]
        records = [{"fields": example(codec._by_kind[k], draw), "kind": k} for k in kinds]
        for one in records:
            one["fields"].update(_FITTING | ({"index": "a" * 32} if len(records) % 2 else {}))
            known = example(codec._by_kind[one["kind"]], draw)
            one["fields"] = {k: v for k, v in one["fields"].items() if k in known}
            if isinstance(known.get("producers"), bytes):  # of REPLACE and DAMAGED
                one["fields"]["producers"] = b"".join(n.to_bytes(4, "little") for n in range(3))
        seeds.append(msgpack.packb(records))

    def run(data: bytes) -> None:
        found = _unpacked(data)
        if isinstance(found, list):
            walk(codec.decode(envelope(msgpack.packb(one)), "name") for one in found)

    return Target(run, tuple(seeds), tree=True)


def _unpacked(data: bytes) -> Any:
    with suppress(Exception):  # what is not msgpack is the target "control"'s
        return msgpack.unpackb(data, strict_map_key=False, raw=False)
    return None


def fold_stage(records: Iterator[Any]) -> None:
    state = StageState()
    for slot, record in enumerate(records, 1):
        state = with_record(state, slot, record)


def fold_job(records: Iterator[Any]) -> None:
    state = JobState("job")
    for record in records:
        if not isinstance(record, Claim) or record.job == "job":  # else it is the user's mistake
            state.apply(record)


def fold_consumer(records: Iterator[Any]) -> None:
    state = ResumeSet()
    for record in records:
        state = fold(state, record, name="name")


# -- frames

_FRAME_HEAD = struct.Struct("<BBHIIB")  # kind, flags, reserved, rows, body length, spare


def frames_of(data: bytes) -> bytes:
    """Return frames with right CRCs whose headers and bodies `data` holds one after the other."""
    out, at = b"", 0
    while at + _FRAME_HEAD.size <= len(data) and len(out) < 1 << 16:
        kind, flags, reserved, rows, length, spare = _FRAME_HEAD.unpack_from(data, at)
        at += _FRAME_HEAD.size
        body = data[at : at + length]
        at += length
        lie = length if spare & 1 else len(body)  # a length that the body does not have
        padded = body + bytes(-len(body) % 8)
        head = struct.pack(
            "<IBBHIII", 0x46534489, kind, flags, reserved, rows, lie, zlib.crc32(padded)
        )
        out += head + struct.pack("<I", zlib.crc32(head)) + padded
    return out


def run_frames(data: bytes) -> None:
    """Decode frames fed in pieces, join continued ones, decode bodies by their kind."""
    whole = FrameDecoder(None, max_body_bytes=1 << 20)
    step = 1 + len(data) % 97
    for at in range(0, len(data), step):
        whole.feed(data[at : at + step])
        while (record := whole.next_record()) is not NEED_DATA:
            _body(record)
    whole.end()


def run_buffers(data: bytes) -> None:
    """Cut the same frames into buffers: every byte lies in one of them."""
    cutter = BufferCutter(0, 1 << 20)
    step = 1 + len(data) % 89
    taken = 0
    for at in range(0, len(data), step):
        taken += sum(b.data.nbytes for b in cutter.cut(data[at : at + step]))
    cutter.end()
    assert taken == len(data), "bytes are lost"


def _body(frame: Frame) -> None:
    if frame.kind is FrameKind.MARKER:
        decode_marker(frame.body, name="name")
    elif frame.kind is FrameKind.MSGPACK:
        for _ in unpack_pairs(frame.body, frame.rows):
            pass
    else:
        touch(decode_batch(frame.body, SCHEMAS[0], max_bytes=MAX_BATCH_BYTES))


def frame_seeds() -> tuple[bytes, ...]:
    found = []
    for kind, rows, body in (
        (1, 20, bytes(_bodies(SCHEMAS[0], 0)[0])),
        (2, 2, pairs_body([pack_pairs([("a", 1), ("b", [2])])], 2)),
        (3, 0, envelope(msgpack.packb({"fields": {"id": 3}, "kind": "CHECKPOINT"}))),
        (2, 0, b"\x92\xa1a"),
    ):
        flags = int(len(body) == 3)
        found.append(_FRAME_HEAD.pack(kind, flags, 0, rows, len(body), 0) + body)
    return (*found, found[3] + found[3] + found[1], found[2] + found[1])


# -- Arrow

SCHEMAS = (
    pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())]),
    pa.schema([("a", pa.bool_()), ("b", pa.null()), ("c", pa.binary())]),
    pa.schema([("a", pa.list_(pa.string())), ("b", pa.large_string())]),
    pa.schema([("a", pa.map_(pa.string(), pa.list_(pa.int32())))]),
    pa.schema([("a", pa.struct([("x", pa.string()), ("y", pa.struct([("z", pa.bool_())]))]))]),
    pa.schema([("a", pa.list_(pa.int16(), 3)), ("b", pa.binary(5))]),
    pa.schema([("a", pa.decimal128(20, 3)), ("b", pa.decimal256(50, 3)), ("c", pa.date32())]),
    pa.schema([("a", pa.timestamp("us", "UTC")), ("b", pa.duration("us")), ("c", pa.time64("us"))]),
    pa.schema([("a", pa.dense_union([pa.field("x", pa.int64()), pa.field("y", pa.string())]))]),
    pa.schema([("a", pa.sparse_union([pa.field("x", pa.int64()), pa.field("y", pa.bool_())]))]),
    pa.schema([("a", pa.large_list(pa.large_binary())), ("b", pa.float16())]),
    # never written, but a forged DESCRIBE may say so
    pa.schema([("a", pa.string_view()), ("b", pa.binary_view())]),
    pa.schema([("a", pa.list_view(pa.int64()))]),
    pa.schema([("a", pa.run_end_encoded(pa.int32(), pa.string()))]),
    pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]),
    pa.schema([]),
)
CODECS = (None, "lz4", "zstd")


def _column(kind: pa.DataType, rows: int, draw: random.Random) -> pa.Array:
    if pa.types.is_union(kind):
        children = [_column(kind.field(i).type, rows, draw) for i in range(kind.num_fields)]
        types = pa.array([draw.randrange(2) for _ in range(rows)], pa.int8())
        if kind.mode == "sparse":
            return pa.UnionArray.from_sparse(types, children, ["x", "y"])
        places = pa.array(range(rows), pa.int32())
        return pa.UnionArray.from_dense(types, places, children, ["x", "y"])
    if pa.types.is_run_end_encoded(kind):
        return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array(["x"]))
    if pa.types.is_dictionary(kind):
        return pa.array(["a"] * rows).dictionary_encode().cast(kind)
    return pa.array(
        [None if draw.random() < 0.3 else _value(kind, draw) for _ in range(rows)], kind
    )


def _value(kind: pa.DataType, draw: random.Random) -> Any:
    t = pa.types
    if t.is_struct(kind):
        return {
            kind.field(i).name: _value(kind.field(i).type, draw) for i in range(kind.num_fields)
        }
    if t.is_map(kind):
        return [("k", _value(kind.item_type, draw))]
    if t.is_fixed_size_list(kind):
        return [1, 2, 3]
    if t.is_nested(kind):
        return [_value(kind.value_type, draw) for _ in range(draw.randrange(4))]
    if t.is_boolean(kind):
        return draw.random() < 0.5
    if t.is_fixed_size_binary(kind):
        return b"12345"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return bytes(draw.randrange(30))
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "x" * draw.randrange(30)
    if t.is_decimal(kind):
        return Decimal(draw.randrange(1000))
    if t.is_float16(kind):
        return np.float16(1.5)
    return None if t.is_null(kind) else draw.randrange(1000)


def _bodies(schema: pa.Schema, codec: int) -> list[bytes]:
    """Return messages of batches as Arrow writes them, also of layouts that we never write."""
    draw, found = random.Random(5), []
    for rows in (20, 1300, 1):
        columns = [_column(field.type, rows, draw) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=CODECS[codec])
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            writer.write_batch(batch.slice(0, 0))
            start = sink.tell()
            writer.write_batch(batch)
            end = sink.tell()
        found.append(sink.getvalue().to_pybytes()[start:end])
    return found


def run_arrow(data: bytes) -> None:
    """Decode a body by the schema that its first byte chooses, and use every value."""
    if data:
        touch(decode_batch(data[1:], SCHEMAS[data[0] % len(SCHEMAS)], max_bytes=MAX_BATCH_BYTES))


def touch(batch: pa.RecordBatch) -> None:
    """Do what readers do: copy rows by number, join, write again, give values to Python."""
    rows = min(batch.num_rows, 5000)
    for column in batch.slice(0, rows).columns:
        kind = column.type
        if not _views(kind):
            column.take(pa.array(range(rows - 1, -1, -1), pa.int64()))
            pa.concat_arrays([column, column])
        if kind in (pa.string(), pa.binary(), pa.int64(), pa.list_(pa.string())):
            with suppress(UnicodeDecodeError):  # legal: Spark does not check
                column.to_pylist()
    if batch.num_columns and storable_schema(batch.schema) == batch.schema and rows:
        encode_slices(batch, [(0, rows // 2), (rows // 2, rows - rows // 2)], "none")


def _views(kind: pa.DataType) -> bool:
    t = pa.types
    rare = (t.is_list_view, t.is_run_end_encoded, t.is_string_view, t.is_binary_view)
    return any(check(kind) for check in rare)


def run_schema(data: bytes) -> None:
    logical_schema(schema_from_bytes(data))


# -- index

_INDEX = "job/m1/index/" + "a" * 32
_HEAD = struct.Struct("<QI")  # R and M, as small as they are, then entries
R, M = 3, 2


def index_of(data: bytes) -> bytes:
    """Return an index whose header, entries and slices are what `data` says, with right CRCs."""
    partitions, producers = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    head = struct.pack("<IIQI", 0x58494453, index._VERSION, partitions, producers)
    head += struct.pack("<I", zlib.crc32(head, zlib.crc32(_INDEX.encode())))
    at, table = _HEAD.size, b""
    payload = data[at + 16 * R :]
    for k in range(R):
        offset, length = struct.unpack("<QQ", data[at : at + 16].ljust(16, b"\0"))
        at += 16
        start = offset - index.HEADER_BYTES - index.ENTRY_BYTES * R
        crc = zlib.crc32(payload[max(0, start) : max(0, start) + min(length, len(payload))])
        entry = struct.pack("<QQI", offset, length, crc)
        seed = index._entry_seed(_INDEX, R, M, k)
        table += entry + struct.pack("<I", zlib.crc32(entry, seed))
    return head + table + payload


def run_index(data: bytes) -> None:
    """Read every partition as a reader would, then check the object as `verify` does."""
    whole = index_of(data)
    seal = Seal("r", 1, M, "a" * 32, len(whole), bytes(8), bytes(32), bytes(64), 0, 0, 0)
    for _ in check_index(_INDEX, whole, seal, partitions=R, rebuilt=None):
        pass
    index.parse_header(whole[: index.HEADER_BYTES], key=_INDEX)
    for k in range(R):
        at = index.entry_offset(k)
        entry = whole[at : at + index.ENTRY_BYTES]
        start, length, crc = index.parse_entry(entry, k, key=_INDEX, partitions=R, producers=M)
        if start + length > len(whole):
            raise CorruptDataError("as `read_extents` says")
        found = index.parse_slice(whole[start : start + length], crc, name=_INDEX, subpartition=k)
        _check_joined(found, name=_INDEX, subpartition=k)


def index_seed() -> bytes:
    entries = np.zeros(2 * R, dtype=index.INDEX_ENTRY)
    for k in range(R):
        entries[2 * k] = (0, 0, 64 * k, 64, 0, 5, b"\1" * 16)
        entries[2 * k + 1] = (1, 0, 0, 0, 0, 0, b"\2" * 16)
    start = index.HEADER_BYTES + index.ENTRY_BYTES * R
    size = 2 * index.INDEX_ENTRY.itemsize
    places = [struct.pack("<QQ", start + k * size, size) for k in range(R)]
    return _HEAD.pack(R, M) + b"".join(places) + entries.tobytes()


def extents_seed() -> bytes:
    entries = np.zeros(R, dtype=EXTENT)
    entries["subpartition"] = range(R)
    entries["length"] = entries["rows"] = 64
    return entries.tobytes()


def run_commits(data: bytes) -> None:
    """Make the index of a COMMIT whose extents are any bytes."""
    commit = Commit("a" * 32, 0, 1, 5, 5, (), data)
    index.build_index([commit], R, key=_INDEX)


# -- the rest


def run_pairs(data: bytes) -> None:
    for _ in unpack_pairs(data[1:], data[0] if data else 0):
        pass


def run_packed(data: bytes) -> None:
    unpack_extents(data[1:], "name") if data[:1] < b"\x80" else unpack_positions(
        data[1:], name="name"
    )


def run_offset(data: bytes) -> None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return  # Spark's to say
    offset_from_json(found, stage="s", widths=(2, 2)).to_json()


def run_names(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    parse_stage_folder("job", text)
    for parse in (parse_segment_key, parse_compacted_key, parse_consumer_key):
        with suppress(*STORED, InvalidInputError):
            parse(text)


def _foreign(_: bytes) -> None:
    raise KeyError("a foreign error")


def _too_much(_: bytes) -> None:
    try:
        bytearray(1 << 30)
    except MemoryError as error:
        raise CorruptDataError("too much memory") from error


def _crash(_: bytes) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def objects() -> list[Any]:
    return [1, -1, 2**70, "text", b"raw", [1, [2]], {"a": None}, (1, 2), {3, 4}, Decimal("1.5")]


def targets() -> dict[str, Target]:
    """Return all targets by name."""
    codecs: dict[str, RecordCodec[Any]] = {
        "job": JOB_RECORDS, "stage": STAGE_RECORDS, "producer": PRODUCER_RECORDS,
        "log producer": LOG_PRODUCER_RECORDS, "consumer": CONSUMER_RECORDS, "request": REQUESTS,
        "status": STATUSES, "report": REPORTS, "entry": ENTRIES, "parked": PARKED,
    }  # fmt: skip
    arrow = [
        bytes([n]) + body
        for n, schema in enumerate(SCHEMAS)
        for codec in range(len(CODECS))
        for body in _bodies(schema, codec)
        if len(body) < 20_000
    ]
    one = msgpack.packb(
        {"fields": {"attempt": "a", "record_id": "r", "cause": "x"}, "kind": "ABORT"}
    )
    frames = frame_seeds()
    return {
        "self-test foreign": Target(_foreign, (b"x",)),
        "self-test memory": Target(_too_much, (b"x",)),
        "self-test crash": Target(_crash, (b"x",)),
        "control": Target(lambda d: decode_control(d, name="n") and None, (envelope(one), one)),
        "payload": Target(lambda d: decode_control(envelope(d), name="n") and None, (one,)),
        "records": records_target(codecs),
        "stage log": log_target(STAGE_RECORDS, fold_stage),
        "job log": log_target(JOB_RECORDS, fold_job),
        "consumer log": log_target(CONSUMER_RECORDS, fold_consumer),
        "frames": Target(lambda d: run_frames(frames_of(d)), frames),
        "raw frames": Target(run_frames, tuple(frames_of(f) for f in frames)),
        "buffers": Target(lambda d: run_buffers(frames_of(d)), frames),
        "continued frames": Target(
            run_frames,
            (
                b"".join(
                    record_parts(FrameKind.MSGPACK, 1, b"\x92" + bytes(99), 0, max_body_bytes=32)
                ),
            ),
        ),
        "index": Target(run_index, (index_seed(),)),
        "commits": Target(run_commits, (extents_seed(),)),
        "arrow": Target(run_arrow, tuple(arrow)),
        "schema": Target(run_schema, tuple(schema_to_bytes(s) for s in SCHEMAS)),
        "msgpack": Target(lambda d: decode_records(d) and None, (encode_records(objects()),)),
        "pairs": Target(
            run_pairs, (b"\x02" + pairs_body([pack_pairs([(1, (2, 3)), ("a", 1)])], 2),)
        ),
        "packed": Target(run_packed, (bytes(81), b"\x80" + bytes(64))),
        "offset": Target(
            run_offset,
            (
                b'{"version":1,"stage":"s","producers":[{"slot":1,"next":[1,2]},{"slot":0,"next":[0,0]}]}',
            ),
            (*STORED, InvalidInputError),
        ),
        "names": Target(
            run_names,
            (
                f"m1-{'0' * 32}-{'1' * 32}".encode(),
                b"j/m1/segments/0a/p000001-" + b"2" * 32 + b"-0.seg",
            ),
            (*STORED, InvalidInputError),
        ),
    }
