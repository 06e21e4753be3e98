"""What logs say about a job and its stages, as plain values. Reads control records only."""

from dataclasses import dataclass, replace

from durable_shuffle.jobs.inspect.names import SHORT_ID, short_name
from durable_shuffle.jobs.inspect.producer_logs import ProducerLog, log_status, read_producer_logs
from durable_shuffle.jobs.text import size, table, when
from durable_shuffle.serialization.errors import DurableShuffleError, NotFoundError
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage, read_state
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.job import JobCopy


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage in one line."""

    name: str
    fingerprint: str
    incarnation: str
    status: str
    """"sealed", "unsealed", "log", "released", or the kind of the error that its log gave."""
    producers: int | None
    producers_ended: int | None
    """Of log producers: how many will never append again."""
    partitions: int | None
    rows: int | None
    data_bytes: int | None
    created_wall_seconds: float | None
    message: str | None
    """The error, if there was one."""


def summarise(storage: Storage, path: StagePath, *, released: bool) -> StageSummary:
    """Read DESCRIBE and the stage log, of log producers also their logs, each once; an error
    becomes part of the answer."""
    names = path.name, path.fingerprint, path.incarnation
    logs: list[ProducerLog] | None = None
    try:
        stage = open_stage(storage, path)
        state = read_state(stage)
        gone = released or state.release is not None
        if stage.describe.writing == "log" and not gone:
            logs = read_producer_logs(stage, state)
    except NotFoundError as e:
        gone = released  # its DESCRIBE was lost before
        status = "released" if gone else e.kind.value
        message = None if gone else str(e)
        return StageSummary(*names, status, None, None, None, None, None, None, message)
    except DurableShuffleError as e:
        return StageSummary(*names, e.kind.value, None, None, None, None, None, None, str(e))
    seal, describe = state.seal, stage.describe
    found = StageSummary(
        *names,
        status="released" if gone else "sealed" if seal else "unsealed",
        producers=seal.producers if seal else describe.producers,
        producers_ended=None,
        partitions=describe.partitions,
        rows=seal.rows if seal else None,
        data_bytes=seal.data_bytes if seal else None,
        created_wall_seconds=describe.created_wall_seconds,
        message=None,
    )
    if logs is None:
        return found
    return replace(
        found,
        status="log",
        producers_ended=sum(log.ended for log in logs),
        rows=sum(int(log.stored.sum()) for log in logs),
        data_bytes=sum(log.data_bytes for log in logs),
    )


def summaries(storage: Storage, job: JobCopy) -> list[StageSummary]:
    """Return all stages of a job, oldest first, released ones included."""
    return [summarise(storage, path, released=path in job.released) for path in job.paths]


def stage_table(stages: list[StageSummary]) -> str:
    """Return stages for people, ids shortened, with the errors below."""
    head = ["STAGE", "STATUS", "PRODUCERS", "PARTITIONS", "ROWS", "SIZE", "CREATED", "INCARNATION"]
    rows = [
        [
            short_name(s.name, s.fingerprint),
            _status(s),
            s.producers,
            s.partitions,
            s.rows,
            size(s.data_bytes),
            when(s.created_wall_seconds),
            s.incarnation[:SHORT_ID],
        ]
        for s in stages
    ]
    errors = [f"{s.name}: {s.message}" for s in stages if s.message is not None]
    return "\n".join([table(head, rows), *errors]) if rows else "no stages"


def _status(stage: StageSummary) -> str:
    if stage.producers_ended is None:
        return stage.status
    return log_status(stage.producers_ended, stage.producers or 0)
