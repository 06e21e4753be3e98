"""List a job's objects and judge each one, for a collection that may delete them.

The caller reads the job's log after it has claimed the job; the logs of stages and consumers are
read here, after the listing, so that they are newer than what it shows. It deletes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.appender_log import APPENDER_RECORDS
from durable_shuffle.shuffle.log.appender_reads import followed, gone_of
from durable_shuffle.shuffle.log.consumer_records import CONSUMER_RECORDS
from durable_shuffle.shuffle.log.layout import ConsumerPath, StagePath, parse_stage_folder
from durable_shuffle.shuffle.log.records import (
    PRODUCER_RECORDS,
    STAGE_RECORDS,
    Describe,
    ReleaseUpto,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog, slots_listed
from durable_shuffle.shuffle.log.stage import numbers
from durable_shuffle.shuffle.release.gc import (
    Judged,
    Scope,
    StageLogs,
    by_age,
    judge_consumer,
    judge_rest,
    judge_stage,
)
from durable_shuffle.shuffle.storage.contract import ObjectInfo, Storage
from durable_shuffle.shuffle.verify.job import JobCopy
from durable_shuffle.shuffle.verify.logs import LogCopy, copy_log, highest_slots


@runtime_checkable
class KeepsTemporaries(Protocol):
    """A storage whose killed writers leave temporary files that `list` does not show."""

    def temporary_files(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the temporary files below a prefix, also those of running writers."""

    def delete_temporary(self, keys: Sequence[str]) -> None:
        """Delete temporary files; a missing file is fine."""


def temporaries_of(storage: Storage) -> KeepsTemporaries | None:
    """Return the backend if it keeps temporary files, else None."""
    backend = getattr(storage, "backend", storage)
    return backend if isinstance(backend, KeepsTemporaries) else None


def survey(storage: Storage, copy: JobCopy, *, threads: int, now: float, age: float) -> list[Scope]:
    """Judge all objects of a job.

    Args:
        copy: the job's log, without findings.
        threads: how many stages or consumer tasks are judged at once.
        now: seconds since 1970.
        age: younger leftovers are spared, in seconds; see `gc.by_age`.
    """
    job = copy.job
    stages: dict[StagePath, list[ObjectInfo]] = {path: [] for path in copy.paths}
    consumers: dict[ConsumerPath, list[ObjectInfo]] = {}
    rest: list[ObjectInfo] = []
    temporaries: dict[object, list[Judged]] = defaultdict(list)
    hidden = list(keeper.temporary_files(f"{job}/")) if (keeper := temporaries_of(storage)) else []
    for info in storage.list(f"{job}/"):
        owner = _owner(job, info.key)
        if isinstance(owner, StagePath):
            stages.setdefault(owner, []).append(info)
        elif isinstance(owner, ConsumerPath):
            consumers.setdefault(owner, []).append(info)
        else:
            rest.append(info)
    for info in hidden:
        owner = _owner(job, info.key)
        known = owner if owner in stages or owner in consumers else None
        temporaries[known].append(by_age(info, "a killed writer", now, age, temporary=True))
    with ThreadPoolExecutor(threads) as pool:
        of_stages = pool.map(
            lambda item: judge_stage(
                item[0],
                item[1],
                _stage_logs(storage, copy, *item),
                temporaries[item[0]],
                at_work_since=now - age,
            ),
            list(stages.items()),
        )
        of_consumers = pool.map(
            lambda item: _judge_consumer(storage, item[0], item[1], temporaries[item[0]]),
            list(consumers.items()),
        )
        scopes = [*of_stages, *of_consumers]
    left = judge_rest(job, rest, temporaries[None], now=now, older_than_seconds=age)
    return [*scopes, *left]


def _owner(job: str, key: str) -> StagePath | ConsumerPath | None:
    parts = key.split("/")
    if len(parts) > 2 and parts[1] == "consumers":
        if len(parts) < 5:
            return None
        try:
            return ConsumerPath(job, parts[2], parts[3])
        except InvalidInputError:
            return None
    return parse_stage_folder(job, parts[1]) if len(parts) > 2 else None


def _stage_logs(
    storage: Storage, copy: JobCopy, path: StagePath, listed: Iterable[ObjectInfo]
) -> StageLogs:
    last = highest_slots(info.key for info in listed)
    stage = copy_log(
        SlotLog(storage, path.log_prefix), STAGE_RECORDS, known=last.get(path.log_prefix, 0)
    )
    describe = stage.records.get(0)
    in_log = isinstance(describe, Describe) and describe.writing == "log"
    codec: RecordCodec[Any] = APPENDER_RECORDS if in_log else PRODUCER_RECORDS
    upto = stage.last(ReleaseUpto)
    deleted = numbers(upto.deleted) if isinstance(upto, ReleaseUpto) else []
    slots = slots_listed(info.key for info in listed)
    producers, firsts = {}, dict[int, int]()
    for producer in sorted({n for i in listed if (n := path.producer_of(i.key)) is not None}):
        log = SlotLog(storage, path.producer_log_prefix(producer))
        known = last.get(log.prefix, -1)
        first = firsts[producer] = gone_of(deleted, producer)
        below = sorted(slot for slot in slots.get(log.prefix, ()) if slot < first)
        producers[producer] = copy_log(log, codec, known=known, first=first, below=below)
    return StageLogs(
        copy.status(path),
        stage.records,
        {p: followed(log.records, firsts[p]) for p, log in producers.items()},
        _findings([stage, *producers.values()]),
    )


def _findings(logs: Iterable[LogCopy[Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((finding.key, str(finding)) for log in logs for finding in log.findings)


def _judge_consumer(
    storage: Storage,
    path: ConsumerPath,
    listed: Sequence[ObjectInfo],
    temporaries: Iterable[Judged],
) -> Scope:
    log = SlotLog(storage, path.log_prefix)
    last = highest_slots(info.key for info in listed)
    copied = copy_log(log, CONSUMER_RECORDS, known=last.get(path.log_prefix, -1))
    findings, state = _findings([copied]), None
    if not findings:
        try:
            state = read_resume_set(log)
        except (CorruptDataError, IncompatibleError) as error:
            findings = ((path.log_prefix, str(error)),)
    return judge_consumer(path, listed, state, findings, temporaries)
