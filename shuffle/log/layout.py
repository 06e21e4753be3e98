"""Names of objects: ids to keys and back. Pure. docs/internals/format.md shows the tree of a job.

A stage's incarnation is a random id, so a path that was ever deleted is never used again.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.storage.contract import ObjectInfo

Name = TypeVar("Name")

MAX_NAME_CHARS = 100
"""Short enough for every backend (S3 keys have at most 1,024 bytes)."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ID = re.compile(r"[0-9a-f]{32}")
_COMPACTED_SEGMENT = re.compile(r"([0-9a-f]{32})-(0|[1-9][0-9]*)\.seg")
_SEGMENT = re.compile(r"p(\d{6,})-([0-9a-f]{32})-(\d+)\.seg")
_INDEX_PART = re.compile(r"([0-9a-f]{32})-([1-9][0-9]*)")
_STAGE = re.compile(r"(.+)-([0-9a-f]{32})-([0-9a-f]{32})")
_SLOT = re.compile(r"\d{10,}")
_STAGE_SLOT = re.compile(r"(log|producers/p\d{6,})/\d{10,}")
_CONSUMER_FOLDERS: dict[str, "ConsumerKind"] = {"outputs": "output", "state": "state"}

ConsumerKind = Literal["slot", "output", "state"]


def check_name(what: str, name: str) -> str:
    """Return `name` if it may be part of a key.

    Raises:
        InvalidInputError: no text, empty, too long, or other characters than letters, digits, '.',
            '_' and '-'; names `what`.
    """
    given: object = name  # of a user's program
    if not isinstance(given, str) or not _NAME.fullmatch(given) or len(given) > MAX_NAME_CHARS:
        raise InvalidInputError(
            f"{what} must be 1 to {MAX_NAME_CHARS} letters, digits, '.', '_' or '-' and start with "
            f"a letter, digit or '_', found={name!r}"
        )
    return name


def is_id(text: str) -> bool:
    """Return whether `text` is an id as `IdSource` makes them."""
    return _ID.fullmatch(text) is not None


def job_log_prefix(job: str) -> str:
    """Prefix of the job log's slots, with the final '/'."""
    return f"{check_name('job', job)}/log/"


def job_snapshots_prefix(job: str) -> str:
    """Prefix of the job log's snapshots, each named by the slot up to which it replaces the log."""
    return f"{check_name('job', job)}/snapshots/"


def job_floors_prefix(job: str) -> str:
    """Prefix of the job log's two floors."""
    return f"{check_name('job', job)}/floors/"


def preflight_key(job: str, new_id: str) -> str:
    """Key of an object by which a driver tries the storage; `gc` deletes what is left."""
    return f"{check_name('job', job)}/preflight/{new_id}"


def command_log_prefix(job: str) -> str:
    """Prefix of the slots in which a pipeline's coordinator speaks to its tasks."""
    return f"{check_name('pipeline', job)}/commands/"


def request_log_prefix(job: str) -> str:
    """Prefix of the slots in which a pipeline's coordinator is asked for something."""
    return f"{check_name('pipeline', job)}/requests/"


def status_log_prefix(job: str) -> str:
    """Prefix of the slots in which a pipeline's coordinator says how it is."""
    return f"{check_name('pipeline', job)}/status/"


def reports_prefix(job: str, line: str) -> str:
    """Prefix of what one attempt at a pipeline's task says, with the final '/'."""
    return f"{check_name('job', job)}/reports/{check_name('line', line)}/"


def slot_name(slot: int) -> str:
    """Zero-padded name of a slot, so that listings sort."""
    return f"{slot:010d}"


COMPACTED = 1 << 31
"""Bit of a segment's number in an index: it is a compaction's, not a producer attempt's."""


@dataclass(frozen=True, slots=True)
class StagePath:
    """Where one incarnation of one stage lives.

    Raises:
        InvalidInputError: a bad name, or a fingerprint or incarnation that is no id.
    """

    job: str
    name: str
    fingerprint: str
    incarnation: str

    def __post_init__(self) -> None:
        check_name("job", self.job)
        check_name("stage name", self.name)
        for what in ("fingerprint", "incarnation"):
            if not is_id(getattr(self, what)):
                raise InvalidInputError(
                    f"a stage's {what} must be 32 hexadecimal digits, found={getattr(self, what)!r}"
                )

    @property
    def folder(self) -> str:
        """Name of the stage's folder below the job."""
        return f"{self.name}-{self.fingerprint}-{self.incarnation}"

    @property
    def prefix(self) -> str:
        """Prefix of all objects of the stage, with the final '/'."""
        return f"{self.job}/{self.folder}/"

    @property
    def log_prefix(self) -> str:
        return f"{self.prefix}log/"

    @property
    def producers_prefix(self) -> str:
        return f"{self.prefix}producers/"

    @property
    def segments_prefix(self) -> str:
        return f"{self.prefix}segments/"

    @property
    def index_prefix(self) -> str:
        return f"{self.prefix}index/"

    def producer_log_prefix(self, producer: int) -> str:
        return f"{self.prefix}producers/p{producer:06d}/"

    def segment_key(self, producer: int, attempt: str, number: int) -> str:
        """Key of segment `number`, from 0, of one attempt; a hash prefix spreads the keys."""
        name = f"p{producer:06d}-{_stored_id(attempt)}-{number}.seg"
        spread = zlib.crc32(name.encode()) & 0xFF
        return f"{self.segments_prefix}{spread:02x}/{name}"

    @property
    def compacted_prefix(self) -> str:
        return f"{self.prefix}compacted/"

    def compacted_key(self, attempt: str, number: int) -> str:
        """Key of compacted segment `number`, from 0, of one compaction."""
        name = f"{_stored_id(attempt)}-{number}.seg"
        return f"{self.compacted_prefix}{zlib.crc32(name.encode()) & 0xFF:02x}/{name}"

    def extent_key(self, producer: int, attempt: str, segment: int) -> str:
        """Key of the segment that an index entry names."""
        if segment & COMPACTED:
            return self.compacted_key(attempt, segment & ~COMPACTED)
        return self.segment_key(producer, attempt, segment)

    def index_key(self, nonce: str) -> str:
        """Key of an index; see also `index_part_key`."""
        return f"{self.index_prefix}{_stored_id(nonce)}"

    def index_of(self, key: str) -> str | None:
        """Return the id of the index that an object with this key is part of; None if of none."""
        name = key.rpartition("/")[2].partition("-")[0]
        return name if key.startswith(self.index_prefix) and self.names_data(key) else None

    def producer_of(self, key: str) -> int | None:
        """Return the producer whose segment, or slot of its log, has this name; None if none."""
        folder, *names = key.removeprefix(self.prefix).split("/")
        if folder not in ("segments", "producers") or len(names) < 2:
            return None
        text = names[1 if folder == "segments" else 0].partition("-")[0][1:]
        return int(text) if text.isascii() and text.isdigit() else None

    def names_data(self, key: str) -> bool:
        """Return whether `key` is one that this stage gives a segment or an index.

        No other key is ever deleted, also if a listing shows it.
        """
        name = key.rsplit("/", 1)[-1]
        if match := _SEGMENT.fullmatch(name):
            return key == self.segment_key(int(match[1]), match[2], int(match[3]))
        if match := _COMPACTED_SEGMENT.fullmatch(name):
            return key == self.compacted_key(match[1], int(match[2]))
        if match := _INDEX_PART.fullmatch(name):
            return key == index_part_key(self.index_key(match[1]), int(match[2]))
        return is_id(name) and key == self.index_key(name)

    def names_slot(self, key: str) -> bool:
        """Return whether `key` is a slot of the stage's log, or of one of its producers' logs."""
        return _STAGE_SLOT.fullmatch(key.removeprefix(self.prefix)) is not None


def index_part_key(index: str, part: int) -> str:
    """Key of part `part` of the index with this key; part 0 is the index object itself."""
    return f"{index}-{part}" if part else index


def _stored_id(found: str) -> str:
    """Return the id by which a record names an object, checked before it is part of a key."""
    if not is_id(found):
        raise CorruptDataError(
            f"a record names an object by {found!r:.100}, expected 32 hexadecimal digits"
        )
    return found


def named_here(
    listed: Iterable[ObjectInfo], parse: Callable[[str], Name]
) -> Iterator[tuple[ObjectInfo, Name]]:
    """Yield each listed object with what its name says.

    Objects whose names this library does not give are left out: they are nobody's data, are never
    deleted, and end no run. gc and verify report them.

    Args:
        parse: `parse_segment_key`, `parse_compacted_key` or `parse_consumer_key`.
    """
    for info in listed:
        try:
            name = parse(info.key)
        except CorruptDataError:
            continue
        yield info, name


def parse_segment_key(key: str) -> tuple[int, str, int]:
    """Return (producer, attempt, number) of a segment's key.

    Raises:
        CorruptDataError: not a name that this library gives.
    """
    match = _SEGMENT.fullmatch(key.rsplit("/", 1)[-1])
    if match is None:
        raise CorruptDataError(f"not a segment name: key={key!r}")
    return int(match[1]), match[2], int(match[3])


def parse_compacted_key(key: str) -> tuple[str, int]:
    """Return (compaction, number) of a compacted segment's key.

    Raises:
        CorruptDataError: not a name that this library gives.
    """
    match = _COMPACTED_SEGMENT.fullmatch(key.rsplit("/", 1)[-1])
    if match is None:
        raise CorruptDataError(f"not a compacted segment's name: key={key!r}")
    return match[1], int(match[2])


def parse_stage_folder(job: str, folder: str) -> StagePath | None:
    """Return the stage path of a folder directly below the job's, or None if it is not one."""
    match = _STAGE.fullmatch(folder)
    try:
        return StagePath(job, match[1], match[2], match[3]) if match else None
    except InvalidInputError:  # a name that this library gives no stage
        return None


@dataclass(frozen=True, slots=True)
class ConsumerPath:
    """Where one task of one consumer lives: its log, and the objects that the log names."""

    job: str
    consumer: str
    task: str

    def __post_init__(self) -> None:
        check_name("job", self.job)
        check_name("consumer", self.consumer)
        check_name("task", self.task)

    @property
    def prefix(self) -> str:
        """Prefix of all objects of the consumer task, with the final '/'."""
        return f"{consumers_prefix(self.job)}{self.consumer}/{self.task}/"

    @property
    def log_prefix(self) -> str:
        """Prefix of the consumer log's slots; outputs and state lie in folders below it."""
        return self.prefix

    @property
    def outputs_prefix(self) -> str:
        return f"{self.prefix}outputs/"

    @property
    def state_prefix(self) -> str:
        return f"{self.prefix}state/"

    def output_key(self, nonce: str) -> str:
        return f"{self.outputs_prefix}{nonce}"

    def state_key(self, nonce: str) -> str:
        return f"{self.state_prefix}{nonce}"


def consumers_prefix(job: str) -> str:
    """Prefix of all consumers' logs of a job, with the final '/'."""
    return f"{check_name('job', job)}/consumers/"


def default_task(incarnation: str, subpartition: int) -> str:
    """Name of the task of a consumer that reads one subpartition of one stage."""
    return f"{incarnation}-k{subpartition:06d}"


def parse_consumer_key(key: str) -> tuple[ConsumerPath, ConsumerKind, str]:
    """Return (consumer task, what the object is, its slot or nonce) of a key below a job.

    Raises:
        CorruptDataError: not a name that this library gives.
    """
    parts = key.split("/")
    folder = _CONSUMER_FOLDERS.get(parts[4]) if len(parts) == 6 else None
    kind: ConsumerKind = folder or "slot"
    pattern = _ID if folder else _SLOT
    known = len(parts) == (6 if folder else 5) and parts[1] == "consumers"
    if not known or not pattern.fullmatch(parts[-1]):
        raise CorruptDataError(f"not a name of a consumer's object: key={key!r}")
    try:
        return ConsumerPath(parts[0], parts[2], parts[3]), kind, parts[-1]
    except InvalidInputError as e:
        raise CorruptDataError(f"not a name of a consumer's object: key={key!r}: {e}") from None
