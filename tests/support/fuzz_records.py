"""Control records, one by one, and what the records of a log add up to."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgpack
from fuzz_target import Target, envelope

from durable_shuffle.serialization import field_types
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.shuffle.consume.resume_set import ResumeSet, fold
from durable_shuffle.shuffle.log.appender_log import Append
from durable_shuffle.shuffle.log.job_state import JobState, with_job_record
from durable_shuffle.shuffle.log.records import Claim, Commit
from durable_shuffle.shuffle.log.stage import StageState, with_record


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
            elements = shape._elements * (draw.randrange(3) if shape._repeated else 1)
            return [example(element, draw) for element in elements]
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
        record.shift_array(len(extents), "name")
        record.after.ordinals(len(record.after.next_ordinals) // 8, "name")


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
    for record in records:
        state = with_record(state, record, "name")


def fold_job(records: Iterator[Any]) -> None:
    state = JobState("job")
    for record in records:
        if not isinstance(record, Claim) or record.job == "job":  # else it is the user's mistake
            state = with_job_record(state, record)


def fold_consumer(records: Iterator[Any]) -> None:
    state = ResumeSet()
    for record in records:
        state = fold(state, record, name="name")
