"""All that logs and a listing tell about one stage, as plain values and as text."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_shuffle.jobs.inspect.producer_logs import ProducerLog, read_producer_logs
from durable_shuffle.jobs.inspect.summary import stage_consumers
from durable_shuffle.jobs.text import assigned, fields, size, table, when
from durable_shuffle.serialization.arrow_schemas import logical_schema
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.msgpack_codec import PAIR_CODEC
from durable_shuffle.shuffle.base.words import (
    StageStatus,
    growing_status,
    growing_text,
    status_of,
)
from durable_shuffle.shuffle.log.layout import (
    named_here,
    parse_segment_key,
)
from durable_shuffle.shuffle.log.producer_log import read_producer
from durable_shuffle.shuffle.log.records import Abort, Replace, Seal
from durable_shuffle.shuffle.log.stage import StageHandle, StageState, numbers, read_state
from durable_shuffle.shuffle.seal.seal import count_reruns

_DESCRIBED = (
    "name", "fingerprint", "incarnation", "generation", "created_wall_seconds", "schema", "codec",
    "compression", "writing", "producers", "partitions", "partitioner", "keys", "components",
    "splits", "planning",
)  # fmt: skip
_SEALED = (
    "generation", "producers", "rows", "data_bytes", "memory_bytes", "index", "index_bytes"
)  # fmt: skip

ListedSegment = tuple[int, str, int, int]
"""Producer, attempt, number, bytes."""


def stage_details(stage: StageHandle, *, released: bool) -> dict[str, Any]:
    """Read the logs of one stage, and list its segments.

    Of a stage of log producers, the logs of its consumers are read as well.

    Args:
        released: the job log says so.
    """
    details = _log_details if stage.describe.writing == "log" else _batch_details
    return details(stage, released=released)


def details_text(details: dict[str, Any]) -> str:
    """Return the details for people; single producers and partitions are left to `--json`."""
    return _log_text(details) if "producers_ended" in details else _batch_text(details)


def _batch_details(stage: StageHandle, *, released: bool) -> dict[str, Any]:
    state = read_state(stage)
    seal = state.seal
    released = released or state.release is not None
    segments = list(listed_segments(stage))
    producers, rows = _committed(stage, seal, segments)
    counted = {(p["producer"], p["attempt"]) for p in producers}
    reruns = count_reruns(stage, seal) if seal and not released else None
    sealed = None
    if seal is not None:
        sealed = {name: getattr(seal, name) for name in _SEALED}
        sealed["index"] = stage.path.index_key(seal.index)
    status = status_of(released=released, sealed=seal is not None, damaged=bool(state.damaged))
    return {
        **_described(stage, state, status),
        "seal": sealed,
        "producers": producers,
        "damaged_producers": sorted(state.damaged),
        "suspect": state.suspect,
        "unrecognised": list(state.unrecognised),
        "repairs": [
            {"producers": numbers(record.producers), "cause": record.cause}
            for record in state.counted.values()
            if isinstance(record, Replace)
        ],
        "partitions": _spread(rows),
        "reruns": reruns.attempts if reruns else None,
        **_stored(segments, [length for p, a, _, length in segments if (p, a) not in counted]),
    }


def _log_details(stage: StageHandle, *, released: bool) -> dict[str, Any]:
    consumers = stage_consumers(stage)  # before the producers: a lag is never below 0
    state = read_state(stage)
    logs = read_producer_logs(stage, state)
    appended = {log.producer: log.appended.tolist() for log in logs}
    segments = list(listed_segments(stage))
    named = {(log.producer, *segment) for log in logs for segment in log.segments}
    rows = sum(int(log.stored.sum()) for log in logs)
    for consumer in consumers:
        if consumer["error"] is None:
            k, position = consumer["partition"], consumer["position"]
            consumer["lag"] = sum(appended[p][k] - position.get(p, 0) for p in appended)
    ended = sum(log.ended for log in logs)
    released = released or state.release is not None
    return {
        **_described(stage, state, growing_status(ended, len(logs), released=released)),
        "producers": [_producer(log) for log in logs],
        "producers_ended": ended,
        "rows": rows,
        "released_rows": sum(int(log.appended.sum()) for log in logs) - rows,
        "data_bytes": sum(log.data_bytes for log in logs),
        "partitions": _spread(np.sum([log.stored for log in logs], axis=0)),
        "consumers": consumers,
        **_stored(segments, [length for *key, length in segments if tuple(key) not in named]),
    }


def _described(stage: StageHandle, state: StageState, status: str) -> dict[str, Any]:
    """Return what DESCRIBE says, and what became of the stage."""
    describe, schema = stage.describe, logical_schema(stage.schema)
    pairs = describe.codec == PAIR_CODEC
    types = ["object"] * 2 if pairs else [str(field.type) for field in schema]
    columns = zip(describe.columns, types, strict=True)
    description = {name: getattr(describe, name) for name in _DESCRIBED}
    description["schema"] = [f"{name}: {kind}" for name, kind in columns]
    description["keys"] = list(describe.key_names)
    return {
        "folder": stage.path.folder,
        "status": status,
        "released_because": state.release.cause if state.release else None,
        "description": description,
    }


def _stored(segments: list[ListedSegment], uncommitted: list[int]) -> dict[str, int]:
    return {
        "stored_segments": len(segments),
        "stored_bytes": sum(length for *_, length in segments),
        "uncommitted_segments": len(uncommitted),
        "uncommitted_bytes": sum(uncommitted),
    }


def listed_segments(stage: StageHandle) -> Iterator[ListedSegment]:
    """Yield the segments that a listing shows."""
    listed = named_here(stage.storage.list(stage.path.segments_prefix), parse_segment_key)
    for info, name in listed:
        yield *name, info.size_bytes


def _committed(
    stage: StageHandle, seal: Seal | None, segments: list[ListedSegment]
) -> tuple[list[dict[str, Any]], npt.NDArray[np.uint64]]:
    """Return one entry per committed producer, and the rows of each partition."""
    slots = numbers(seal.commit_slots) if seal else None
    rows = np.zeros(stage.describe.partitions, dtype=np.uint64)
    entries: list[dict[str, Any]] = []
    stored = {(producer, attempt) for producer, attempt, *_ in segments}
    for producer in range(seal.producers if seal else stage.describe.producers):
        log = stage.producer_log(producer)
        state = read_producer(log)
        if slots is None:
            committed = state.counting()
            if committed is None:
                continue
        else:
            slot = slots[producer]
            committed = next((c for c in state.commits() if c.slot == slot), None)
            if committed is None:
                raise CorruptDataError(f"SEAL names a slot without COMMIT: key={log.key(slot)!r}")
        commit = committed.commit
        extents = commit.extent_array(len(rows))
        np.add.at(rows, extents["subpartition"], extents["rows"])
        aborted = [fate for fate in state.fates.values() if isinstance(fate, Abort)]
        attempts = {*state.fates, *(attempt for p, attempt in stored if p == producer)}
        entries.append(
            {
                "producer": producer,
                "attempt": commit.record_id,
                "commit_slot": committed.slot,
                "rows": commit.rows,
                "segments": len(commit.segments),
                "data_bytes": sum(segment.length for segment in commit.segments),
                "memory_bytes": commit.memory_bytes,
                "attempts_seen": len(attempts),
                "attempts_aborted": len(aborted),
            }
        )
    return entries, rows


def _producer(log: ProducerLog) -> dict[str, Any]:
    return {
        "producer": log.producer,
        "attempts": [asdict(attempt) for attempt in log.attempts],
        "appends": sum(attempt.appends for attempt in log.attempts),
        "rows": int(log.stored.sum()),
        "data_bytes": log.data_bytes,
        "end": log.end,
        "ended": log.ended,
        "closed": log.closed,
    }


def _spread(rows: npt.NDArray[np.uint64]) -> dict[str, Any]:
    """Return how the committed rows lie over the partitions."""
    largest = np.argsort(rows, kind="stable")[::-1][:5]
    return {
        "count": len(rows),
        "empty": int((rows == 0).sum()),
        "rows": rows.tolist(),
        "rows_min": int(rows.min()) if len(rows) else 0,
        "rows_median": float(np.median(rows)) if len(rows) else 0.0,
        "rows_max": int(rows.max()) if len(rows) else 0,
        "largest": [{"partition": int(k), "rows": int(rows[k])} for k in largest],
    }


def _batch_text(details: dict[str, Any]) -> str:
    seal, producers = details["seal"], details["producers"]
    committed = f"{len(producers)} of {details['description']['producers'] or '?'} stored"
    seen = sum(p["attempts_seen"] for p in producers)
    aborted = sum(p["attempts_aborted"] for p in producers)
    damaged = details["damaged_producers"]
    values = [
        *_description_fields(details, details["status"]),
        ("map tasks", f"{committed}, {seen} attempts seen, {aborted} aborted"),
        ("attempts run again", details["reruns"]),
        (
            "damaged map tasks",
            f"{', '.join(map(str, damaged[:10]))}: must run again" if damaged else None,
        ),
        ("a reader met", details["suspect"] or None),
        ("good for its call alone", "; ".join(details["unrecognised"]) or None),
        (
            "repaired",
            "; ".join(f"{len(r['producers'])} map tasks: {r['cause']}" for r in details["repairs"])
            or None,
        ),
        ("rows", seal["rows"] if seal else sum(p["rows"] for p in producers)),
        ("encoded", size(seal["data_bytes"]) if seal else None),
        ("in memory", size(seal["memory_bytes"]) if seal else None),
        *_stored_fields(details),
        ("index", f"{seal['index']}, {size(seal['index_bytes'])}" if seal else None),
    ]
    return fields(values)


def _log_text(details: dict[str, Any]) -> str:
    producers, count = details["producers"], len(details["producers"])
    attempts = sum(len(p["attempts"]) for p in producers)
    appends = sum(p["appends"] for p in producers)
    status = details["status"]
    if status != StageStatus.RELEASED:
        status = growing_text(details["producers_ended"], count)
    values = [
        *_description_fields(details, status),
        ("producers", f"{count}, {attempts} attempts, {appends} appends"),
        ("rows", details["rows"]),
        ("released rows", details["released_rows"]),
        ("encoded", size(details["data_bytes"])),
        *_stored_fields(details),
    ]
    text = f"{fields(values)}\n\n{_attempts(producers)}"
    if details["consumers"]:
        text += f"\n\n{_consumers(details['consumers'])}"
    return text


def _description_fields(details: dict[str, Any], status: str) -> list[tuple[str, object]]:
    """Return what DESCRIBE says, for people."""
    described = details["description"]
    placing = f"{described['partitions']}, {described['partitioner']}"
    return [
        ("stage", details["folder"]),
        ("status", status),
        ("released because", details["released_because"]),
        ("created", when(described["created_wall_seconds"])),
        ("driver no.", described["generation"]),
        ("schema", ", ".join(described["schema"])),
        ("stored as", f"{described['codec']}, compression {described['compression']}"),
        ("partitions", assigned(placing, described["keys"])),
    ]


def _stored_fields(details: dict[str, Any]) -> list[tuple[str, object]]:
    """Return what a listing shows and how rows lie over partitions, for people."""
    spread = details["partitions"]
    largest = ", ".join(f"{one['partition']} ({one['rows']})" for one in spread["largest"])
    return [
        ("segments", f"{details['stored_segments']}, {size(details['stored_bytes'])}"),
        (
            "not committed",
            f"{details['uncommitted_segments']} segments, {size(details['uncommitted_bytes'])}",
        ),
        (
            "rows per partition",
            f"min {spread['rows_min']}, median {spread['rows_median']:g}, "
            f"max {spread['rows_max']}, {spread['empty']} empty",
        ),
        ("largest partitions", largest),
    ]


def _attempts(producers: list[dict[str, Any]]) -> str:
    head = ["PRODUCER", "OPEN", "GENERATION", "APPENDS", "ROWS", "SIZE", "END", "ATTEMPT"]
    rows: list[list[object]] = []
    for p in producers:
        for n, one in enumerate(p["attempts"], 1):
            live = "closed" if p["closed"] else "write job" if one["job"] else "still open"
            end = one["end"] or (live if one["job"] or n == len(p["attempts"]) else "superseded")
            numbers = [one[name] for name in ("epoch", "generation", "appends", "rows")]
            rows.append([p["producer"], *numbers, size(one["data_bytes"]), end, one["attempt"]])
        if not p["attempts"]:
            rows.append([p["producer"], *[None] * 5, "never opened", None])
    return table(head, rows)


def _consumers(consumers: list[dict[str, Any]]) -> str:
    head = ["CONSUMER", "PARTITION", "POSITION", "LAG", "FINISHED", "EPOCH", "TASK"]
    names = ("consumer", "partition", "records", "lag", "finished", "epoch", "task")
    rows = [[one[name] for name in names] for one in consumers if one["error"] is None]
    errors = [f"{one['consumer']}: {one['error']}" for one in consumers if one["error"]]
    return "\n".join([table(head, rows), *errors])
