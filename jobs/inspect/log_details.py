"""All that logs and a listing tell about a stage of log producers, as plain values and as text."""

from dataclasses import asdict
from typing import Any

import numpy as np

from durable_shuffle.jobs.inspect.consumers import stage_consumers
from durable_shuffle.jobs.inspect.producer_logs import ProducerLog, log_status, read_producer_logs
from durable_shuffle.jobs.inspect.stage_details import (
    description_fields,
    description_of,
    listed_segments,
    spread_of,
    stored_fields,
)
from durable_shuffle.jobs.text import fields, size, table
from durable_shuffle.shuffle.log.stage import StageHandle, read_state


def log_details(stage: StageHandle, *, released: bool) -> dict[str, Any]:
    """Read the logs of one stage and of its consumers once, and list its segments.

    Args:
        released: the job log says so.
    """
    consumers = stage_consumers(stage)  # before the producers: a lag is never below 0
    state = read_state(stage)
    logs = read_producer_logs(stage, state)
    appended = {log.producer: log.appended.tolist() for log in logs}
    stored = list(listed_segments(stage))
    named = {(log.producer, *segment) for log in logs for segment in log.segments}
    unnamed = [length for *segment, length in stored if tuple(segment) not in named]
    rows = sum(int(log.stored.sum()) for log in logs)
    for one in consumers:
        if one["error"] is not None:
            continue
        k, at = one["partition"], one["position"]
        one["lag"] = sum(appended[p][k] - at.get(p, 0) for p in appended)
    return {
        "folder": stage.path.folder,
        "status": "released" if released or state.release else "log",
        "released_because": state.release.cause if state.release else None,
        "description": description_of(stage),
        "producers": [_producer(log) for log in logs],
        "producers_ended": sum(log.ended for log in logs),
        "rows": rows,
        "released_rows": sum(int(log.appended.sum()) for log in logs) - rows,
        "data_bytes": sum(log.data_bytes for log in logs),
        "partitions": spread_of(np.sum([log.stored for log in logs], axis=0)),
        "consumers": consumers,
        "stored_segments": len(stored),
        "stored_bytes": sum(length for *_, length in stored),
        "uncommitted_segments": len(unnamed),
        "uncommitted_bytes": sum(unnamed),
    }


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


def log_text(details: dict[str, Any]) -> str:
    """Return the details for people; single partitions are left to `--json`."""
    producers, count = details["producers"], len(details["producers"])
    attempts = sum(len(p["attempts"]) for p in producers)
    appends = sum(p["appends"] for p in producers)
    status = details["status"]
    if status == "log":
        status = log_status(details["producers_ended"], count)
    values = [
        *description_fields(details, status),
        ("producers", f"{count}, {attempts} attempts, {appends} appends"),
        ("rows", details["rows"]),
        ("released rows", details["released_rows"]),
        ("encoded", size(details["data_bytes"])),
        *stored_fields(details),
    ]
    text = f"{fields(values)}\n\n{_attempts(producers)}"
    if details["consumers"]:
        text += f"\n\n{_consumers(details['consumers'])}"
    return text


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
