"""Find records that logs lost at their end: other stored objects prove that they existed.

Strategy: an index object is written after all producers have committed, and right before the record
that names it. So an index that no record names proves all COMMITs that it was built from. It also
proves that a SEAL or REPLACE was about to be written: the record was lost, or its author died.

Some unnamed indexes are no finding, because no reader misses them: an index equal to one that
counts or counted before, and objects of a compaction. Neither is an index that somebody is writing
now, so the log is read again at the end, and one that was written just now is not taken for a lost
SEAL: its driver is about to write that. A consumer's log is further proof: it names the stages
that it reads and the SEAL or REPLACE by which it reads them.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from durable_shuffle.serialization.errors import DurableShuffleError, ErrorKind
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    is_id,
    job_log_prefix,
    parse_compacted_key,
    parse_stage_folder,
)
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt, with_extents
from durable_shuffle.shuffle.log.records import (
    STAGE_RECORDS,
    Commit,
    Compact,
    Describe,
    Replace,
    Seal,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageState, numbers, replaced_seal
from durable_shuffle.shuffle.seal.transpose import by_subpartition
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.index import StoredIndex, check_index, compare_index
from durable_shuffle.shuffle.verify.logs import LogCopy, copy_log
from durable_shuffle.shuffle.verify.report import Finding, finding_of


@dataclass(frozen=True, slots=True)
class LostEnds:
    """Records that were written and lost, or that were about to be written."""

    findings: tuple[Finding, ...] = ()
    unsettled: tuple[str, ...] = ()
    """Ids of REPLACEs that may have been lost. An ABORT for each ensures that it never counts."""


YOUNG_SECONDS = 60.0
"""A driver that lives puts SEAL within this time behind its index."""


def list_indexes(storage: Storage, path: StagePath) -> tuple[dict[str, float], tuple[Finding, ...]]:
    """Return the names of a stage's index objects, except those of compactions, and findings.

    Call it before reading the stage's logs.

    Returns:
        Per name the seconds since 1970 at which it was written, 0 if the storage does not tell.
    """
    try:
        names = {
            i.key.removeprefix(path.index_prefix): i.modified_wall_seconds
            for i in storage.list(path.index_prefix)
        }
        keys = [i.key for i in storage.list(path.compacted_prefix) if path.names_data(i.key)]
    except DurableShuffleError as error:
        return {}, (finding_of(error, path.prefix, "a listing of indexes"),)
    compactions = {parse_compacted_key(key)[0] for key in keys}
    return {n: at for n, at in names.items() if is_id(n) and n not in compactions}, ()


def lost_ends(
    path: StagePath,
    indexes: Mapping[str, float],
    log: LogCopy[Any],
    state: StageState,
    producers: Mapping[int, LogCopy[Any]],
    committed: Collection[int],
    settings: Settings,
    now: float,
) -> LostEnds:
    """Return the records that other objects prove but that the stage's logs do not hold.

    Args:
        indexes: names of index objects and when they were written, listed before the logs were
            read.
        log: the stage log, without findings.
        state: what the stage log adds up to.
        producers: the producers' logs.
        committed: producers with a COMMIT that counts.
        settings: `control_threads` and `scratch_folder` are used.
        now: seconds since 1970; infinite where no driver can be at work.
    """
    storage = log.log.storage
    describe = log.records.get(0)
    named = {r.index for r in log.records.values() if isinstance(r, Seal | Compact | Replace)}
    unnamed = [n for n in indexes if n not in named and n not in state.void]
    if not unnamed or not isinstance(describe, Describe) or describe.writing != "batch":
        return LostEnds()
    if state.replaced is not None:
        unnamed = [
            nonce
            for nonce in unnamed
            if _is_another(storage, path, nonce, log, state.replaced, describe, producers, settings)
        ]
        findings = [_finding(log, "REPLACE", path.index_key(nonce), _REPAIR) for nonce in unnamed]
    else:
        missing = [p for p in range(describe.producers) if p not in committed]
        key = path.index_key(unnamed[0])
        ends = [producers[p] for p in missing if p in producers]
        findings = [_finding(end, "COMMIT", key, _RUN) for end in ends if not end.findings]
        if not findings and now - max(indexes[n] for n in unnamed) > YOUNG_SECONDS:
            findings = [_finding(log, "SEAL", key, _RUN)]
    again = copy_log(SlotLog(storage, path.log_prefix), STAGE_RECORDS)
    if not unnamed or max(again.records, default=-1) > max(log.records):
        return LostEnds()  # somebody is writing to it now
    return LostEnds(tuple(findings), tuple(unnamed) if state.replaced is not None else ())


_RUN = "run the job again, which seals the stage"
_REPAIR = "`verify --repair` settles what counts"


def _finding(log: LogCopy[Any], record: str, index: str, what_to_do: str) -> Finding:
    return Finding(
        log.log.key(max(log.records, default=-1) + 1),
        ErrorKind.NOT_FOUND,
        record,
        f"no such object, and the index {index} that it is about: the log ends before what the "
        f"storage holds, or the author died before {record}; {what_to_do}",
    )


def _is_another(
    storage: Storage,
    path: StagePath,
    nonce: str,
    log: LogCopy[Any],
    seal: Seal,
    describe: Describe,
    producers: Mapping[int, LogCopy[Any]],
    settings: Settings,
) -> bool:
    """Return whether an index is intact and differs from every index that counts or counted."""
    key, partitions, problems = path.index_key(nonce), describe.partitions, list[Finding]()
    mine = replace(seal, index=nonce)
    objects = StoredIndex(storage, path, mine, partitions, problems)
    if problems:
        return False  # no record names it; `gc` deletes it
    mine = replace(mine, index_bytes=len(objects[key]))
    if any(check_index(key, objects, mine, partitions=partitions)) or problems:
        return False
    for slots in _tables(log):
        counted = [
            (producers[p].log, CommittedAttempt(slot, record))
            for p, slot in enumerate(slots)
            if p in producers and isinstance(record := producers[p].records.get(slot), Commit)
        ]
        if len(counted) != len(slots):
            return False  # it cannot be compared
        slices = by_subpartition(
            (c.commit for c in with_extents(counted, threads=settings.control_threads)),
            partitions=partitions,
            producers=len(slots),
            folder=settings.scratch_folder,
        )
        attempts = b"".join(bytes.fromhex(c.commit.record_id) for _, c in counted)
        try:
            if not compare_index(key, objects, slices, attempts, partitions=partitions):
                return False  # equal
        except DurableShuffleError:
            return False  # a finding of a COMMIT
    return True


def _tables(log: LogCopy[Any]) -> Iterator[list[int]]:
    """Yield, for SEAL and each REPLACE, the slot of every producer's COMMIT that then counted."""
    seal: Seal | None = None
    for slot, record in log.records.items():
        if isinstance(record, Seal):
            seal = record
        elif isinstance(record, Replace) and seal is not None:
            try:
                seal = replaced_seal(seal, record, log.log.key(slot))
            except DurableShuffleError:
                continue  # a finding of the log
        else:
            continue
        yield numbers(seal.commit_slots)


def consumed_ends(
    storage: Storage, job: str, reads: Mapping[tuple[str, int], str], known: Collection[StagePath]
) -> tuple[Finding, ...]:
    """Return findings for stages and records that consumers of a job read but the logs do not hold.

    Args:
        reads: (folder of a stage, slot of its log) -> the consumer that names them.
        known: stages of the job log, which was read after the consumers' logs.
    """
    findings = []
    for (folder, slot), by in sorted(reads.items()):
        path = parse_stage_folder(job, folder)
        if path is None or path not in known:
            lost = f"no such record, and {by} names {folder}: the log ends before that"
            key = job_log_prefix(job)
            findings.append(Finding(key, ErrorKind.NOT_FOUND, "a STAGE record", lost))
            continue
        log = SlotLog(storage, path.log_prefix)
        try:
            there = not slot or log.read(slot) is not None
        except DurableShuffleError:
            continue  # a finding of the stage
        if not there:
            lost = f"no such object, and {by} names it: the log ends before that"
            expected = "the SEAL or REPLACE by which a consumer reads"
            findings.append(Finding(log.key(slot), ErrorKind.NOT_FOUND, expected, lost))
    return tuple(findings)
