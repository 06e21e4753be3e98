"""What logs say about a job and its stages, as plain values. Reads control records only."""

from dataclasses import dataclass

from durable_shuffle.jobs.cli.text import size, table, when
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.layout import StagePath
from durable_shuffle.shuffle.stage import open_stage, read_state
from durable_shuffle.shuffle.storage import Storage
from durable_shuffle.shuffle.verify import JobCopy


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage in one line."""

    name: str
    fingerprint: str
    incarnation: str
    status: str
    """"sealed", "unsealed", "released", or the kind of the error that its log gave."""
    producers: int | None
    partitions: int | None
    rows: int | None
    data_bytes: int | None
    created_wall_seconds: float | None
    message: str | None
    """The error, if there was one."""


def summarise(storage: Storage, path: StagePath, *, released: bool) -> StageSummary:
    """Read DESCRIBE and the stage log; an error becomes part of the answer."""
    names = path.name, path.fingerprint, path.incarnation
    try:
        stage = open_stage(storage, path)
        state = read_state(stage)
    except DurableShuffleError as e:
        return StageSummary(*names, e.kind.value, None, None, None, None, None, str(e))
    seal, describe = state.seal, stage.describe
    gone = released or state.release is not None
    return StageSummary(
        *names,
        status="released" if gone else "sealed" if seal else "unsealed",
        producers=seal.producers if seal else describe.producers,
        partitions=describe.partitions,
        rows=seal.rows if seal else None,
        data_bytes=seal.data_bytes if seal else None,
        created_wall_seconds=describe.created_wall_seconds,
        message=None,
    )


def summaries(storage: Storage, job: JobCopy) -> list[StageSummary]:
    """Return all stages of a job, oldest first, released ones included."""
    return [summarise(storage, path, released=path in job.released) for path in job.paths]


def stage_table(stages: list[StageSummary]) -> str:
    """Return stages for people, with the errors below."""
    head = ["STAGE", "STATUS", "PRODUCERS", "PARTITIONS", "ROWS", "SIZE", "CREATED", "INCARNATION"]
    rows = [
        [
            f"{s.name}-{s.fingerprint[:12]}",
            s.status,
            s.producers,
            s.partitions,
            s.rows,
            size(s.data_bytes),
            when(s.created_wall_seconds),
            s.incarnation,
        ]
        for s in stages
    ]
    errors = [f"{s.name}: {s.message}" for s in stages if s.message is not None]
    return "\n".join([table(head, rows), *errors]) if rows else "no stages"
