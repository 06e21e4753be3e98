"""All that logs and a listing tell about one stage, as plain values and as text."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_shuffle.jobs.inspect.names import folder
from durable_shuffle.jobs.text import fields, size, when
from durable_shuffle.serialization.decimals import logical_schema
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.layout import parse_segment_key
from durable_shuffle.shuffle.log.producer_log import read_producer
from durable_shuffle.shuffle.log.records import Abort, Seal
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.log.stage_fold import numbers
from durable_shuffle.shuffle.write.evidence import count_reruns


def stage_details(stage: StageHandle, *, released: bool) -> dict[str, Any]:
    """Read the logs of one stage and list its segments.

    Args:
        released: the job log says so.
    """
    state, describe = read_state(stage), stage.describe
    seal = state.seal
    released = released or state.release is not None
    m = seal.producers if seal else describe.producers
    stored: dict[tuple[int, str], list[int]] = defaultdict(list)
    for producer, attempt, _, length in listed_segments(stage):
        stored[producer, attempt].append(length)
    producers, rows = _producers(stage, seal, m, stored)
    counted = {(p["producer"], p["attempt"]) for p in producers}
    orphans = [
        length for owner, sizes in stored.items() if owner not in counted for length in sizes
    ]
    reruns = count_reruns(stage, seal) if seal and not released else None
    return {
        "folder": folder(stage.path),
        "status": "released" if released else "sealed" if seal else "unsealed",
        "released_because": state.release.cause if state.release else None,
        "description": description_of(stage),
        "seal": None
        if seal is None
        else {
            "generation": seal.generation,
            "producers": seal.producers,
            "rows": seal.rows,
            "data_bytes": seal.data_bytes,
            "memory_bytes": seal.memory_bytes,
            "index": stage.path.index_key(seal.index),
            "index_bytes": seal.index_bytes,
        },
        "producers": producers,
        "damaged_producers": sorted(state.damaged),
        "partitions": spread_of(rows),
        "reruns": reruns.attempts if reruns else None,
        "stored_segments": sum(len(sizes) for sizes in stored.values()),
        "stored_bytes": sum(sum(sizes) for sizes in stored.values()),
        "uncommitted_segments": len(orphans),
        "uncommitted_bytes": sum(orphans),
    }


def description_of(stage: StageHandle) -> dict[str, Any]:
    """Return what DESCRIBE says."""
    describe = stage.describe
    return {
        "name": describe.name,
        "fingerprint": describe.fingerprint,
        "incarnation": describe.incarnation,
        "generation": describe.generation,
        "created_wall_seconds": describe.created_wall_seconds,
        "schema": [
            f"{name}: {field.type}"
            for name, field in zip(describe.columns, logical_schema(stage.schema), strict=True)
        ],
        "codec": describe.codec,
        "compression": describe.compression,
        "writing": describe.writing,
        "producers": describe.producers,
        "partitions": describe.partitions,
        "partitioner": describe.partitioner,
        "keys": [describe.columns[at] for at in describe.keys],
        "components": describe.components,
        "splits": describe.splits,
        "planning": describe.planning,
    }


def listed_segments(stage: StageHandle) -> Iterator[tuple[int, str, int, int]]:
    """Yield (producer, attempt, number, bytes) of the segments that a listing shows."""
    for info in stage.storage.list(stage.path.segments_prefix):
        yield *parse_segment_key(info.key), info.size_bytes


def _producers(
    stage: StageHandle,
    seal: Seal | None,
    m: int | None,
    stored: dict[tuple[int, str], list[int]],
) -> tuple[list[dict[str, Any]], npt.NDArray[np.uint64]]:
    """Return one entry per committed producer, and the rows of each partition."""
    slots = numbers(seal.commit_slots) if seal else None
    rows = np.zeros(stage.describe.partitions, dtype=np.uint64)
    found: list[dict[str, Any]] = []
    producers = range(m) if m is not None else sorted({producer for producer, _ in stored})
    for producer in producers:
        log = stage.producer_log(producer)
        state = read_producer(log)
        if slots is None:
            counting = state.counting()
            if counting is None:
                continue
            slot, commit = counting.slot, counting.commit
        else:
            slot = slots[producer]
            sealed = next((c for c in state.commits() if c.slot == slot), None)
            if sealed is None:
                raise CorruptDataError(f"SEAL names a slot without COMMIT: key={log.key(slot)!r}")
            commit = sealed.commit
        extents = commit.extent_array(len(rows))
        np.add.at(rows, extents["subpartition"], extents["rows"])
        aborted = [fate for fate in state.fates.values() if isinstance(fate, Abort)]
        attempts = {*state.fates, *(attempt for p, attempt in stored if p == producer)}
        found.append(
            {
                "producer": producer,
                "attempt": commit.record_id,
                "commit_slot": slot,
                "rows": commit.rows,
                "segments": len(commit.segments),
                "data_bytes": sum(segment.length for segment in commit.segments),
                "memory_bytes": commit.memory_bytes,
                "attempts_seen": len(attempts),
                "attempts_aborted": len(aborted),
            }
        )
    return found, rows


def spread_of(rows: npt.NDArray[np.uint64]) -> dict[str, Any]:
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


def stage_text(details: dict[str, Any]) -> str:
    """Return the details for people; single producers and partitions are left to `--json`."""
    seal, producers = details["seal"], details["producers"]
    committed = f"{len(producers)} of {details['description']['producers'] or '?'} committed"
    seen = sum(p["attempts_seen"] for p in producers)
    aborted = sum(p["attempts_aborted"] for p in producers)
    damaged = details["damaged_producers"]
    values = [
        *description_fields(details, details["status"]),
        ("producers", f"{committed}, {seen} attempts seen, {aborted} aborted"),
        ("attempts run again", details["reruns"]),
        (
            "damaged producers",
            f"{', '.join(map(str, damaged[:10]))}: must run again" if damaged else None,
        ),
        ("rows", seal["rows"] if seal else sum(p["rows"] for p in producers)),
        ("encoded", size(seal["data_bytes"]) if seal else None),
        ("in memory", size(seal["memory_bytes"]) if seal else None),
        *stored_fields(details),
        ("index", f"{seal['index']}, {size(seal['index_bytes'])}" if seal else None),
    ]
    return fields(values)


def description_fields(details: dict[str, Any], status: str) -> list[tuple[str, object]]:
    """Return what DESCRIBE says, for people."""
    described = details["description"]
    by = f" by {', '.join(described['keys'])}" if described["keys"] else ""
    return [
        ("stage", details["folder"]),
        ("status", status),
        ("released because", details["released_because"]),
        ("created", when(described["created_wall_seconds"])),
        ("generation", described["generation"]),
        ("schema", ", ".join(described["schema"])),
        ("stored as", f"{described['codec']}, compression {described['compression']}"),
        ("partitions", f"{described['partitions']}, {described['partitioner']}{by}"),
    ]


def stored_fields(details: dict[str, Any]) -> list[tuple[str, object]]:
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
