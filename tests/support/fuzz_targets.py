"""What the fuzzer throws bytes at: every decoder of stored bytes, with seeds of real ones.

A target takes bytes and puts the checksums around them itself: a mutated payload with a right CRC
is what reaches an inner decoder. It may return, or raise what decoders may raise; `use` touches all
of what was decoded, as a reader would.
"""

import json
import os
import signal
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
from fuzz_arrow import CODECS, SCHEMAS, bodies, bombs, run_arrow, run_schema
from fuzz_frames import bomb_frames, frame_seeds, frames_of, run_buffers, run_frames
from fuzz_index import extents_seed, index_seed, run_commits, run_index, run_packed
from fuzz_records import fold_consumer, fold_job, fold_stage, log_target, records_target
from fuzz_target import STORED, Target, envelope

from durable_shuffle.recovery.pipeline.commands.requests import REQUESTS
from durable_shuffle.recovery.pipeline.lines.launcher import REPORTS
from durable_shuffle.recovery.pipeline.lines.storage_line import ENTRIES
from durable_shuffle.recovery.pipeline.plan.sinks import PARKED
from durable_shuffle.recovery.pipeline.status import STATUSES
from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.serialization.control import RecordCodec, decode_control
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.serialization.frames import FrameKind, record_parts
from durable_shuffle.serialization.msgpack_codec import (
    decode_records,
    encode_records,
    pack_pairs,
    pairs_body,
    unpack_pairs,
)
from durable_shuffle.shuffle.log.appender_log import APPENDER_RECORDS
from durable_shuffle.shuffle.log.consumer_records import CONSUMER_RECORDS
from durable_shuffle.shuffle.log.job_records import JOB_RECORDS
from durable_shuffle.shuffle.log.layout import (
    parse_compacted_key,
    parse_consumer_key,
    parse_segment_key,
    parse_stage_folder,
)
from durable_shuffle.shuffle.log.records import PRODUCER_RECORDS, STAGE_RECORDS
from durable_shuffle.shuffle.stream.offset import offset_from_json


def run_pairs(data: bytes) -> None:
    for _ in unpack_pairs(data[1:], data[0] if data else 0):
        pass


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


def _unchecked(data: bytes) -> None:
    """Decode as run_arrow, without a look at what the body becomes."""
    pa.ipc.read_record_batch(pa.ipc.read_message(data[1:]), SCHEMAS[0])


def _crash(_: bytes) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def objects() -> list[Any]:
    return [1, -1, 2**70, "text", b"raw", [1, [2]], {"a": None}, (1, 2), {3, 4}, Decimal("1.5")]


def targets() -> dict[str, Target]:
    """Return all targets by name."""
    codecs: dict[str, RecordCodec[Any]] = {
        "job": JOB_RECORDS, "stage": STAGE_RECORDS, "producer": PRODUCER_RECORDS,
        "log producer": APPENDER_RECORDS, "consumer": CONSUMER_RECORDS, "request": REQUESTS,
        "status": STATUSES, "report": REPORTS, "entry": ENTRIES, "parked": PARKED,
    }  # fmt: skip
    arrow = [
        bytes([n]) + body
        for n, schema in enumerate(SCHEMAS)
        for codec in range(len(CODECS))
        for body in bodies(schema, codec)
        if len(body) < 20_000
    ]
    one = msgpack.packb(
        {"fields": {"attempt": "a", "record_id": "r", "cause": "x"}, "kind": "ABORT"}
    )
    frames, forged = frame_seeds(), tuple(bombs())
    return {
        "self-test foreign": Target(_foreign, (b"x",)),
        "self-test memory": Target(_too_much, (b"x",)),
        "self-test crash": Target(_crash, (b"x",)),
        "self-test bomb": Target(_unchecked, (forged[0],)),
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
        "bombs": Target(run_arrow, forged),
        "bombs in frames": Target(lambda d: run_frames(frames_of(d)), bomb_frames(forged[0][1:])),
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
