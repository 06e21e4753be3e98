"""The control records of job, stage and producer logs, as values.

docs/internals/format.md lists the fields.

Every record carries `record_id`, a random id of its author: identical bytes in a slot then mean
that the author's own earlier try won. Large tables travel as packed numpy bytes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.serialization.field_types import FieldError
from durable_shuffle.serialization.msgpack_codec import PAIR_CODEC
from durable_shuffle.shuffle.log.extent_table import EXTENT, unpack_block
from durable_shuffle.shuffle.log.field_checks import check_below, check_id, check_seconds
from durable_shuffle.shuffle.log.layout import COMPACTED, check_name
from durable_shuffle.shuffle.log.stage_notes import Entered, Suspect, Unrecognised
from durable_shuffle.shuffle.rows.partitioner import MAX_PARTITIONS
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES

LAYOUT_VERSION = 1
"""Version of paths, logs and segments; a CLAIM in slot 0 of a job states it."""

TABLES = (("commit_slots", 4), ("attempts", 16), ("content_tags", 32))
"""What SEAL and REPLACE hold one of per producer, with the bytes of each."""

PASSTHROUGH = "passthrough"

_MAX_PRODUCERS = 1 << 24
"""Like MAX_PARTITIONS: a reader takes memory in proportion."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment of an attempt, or of a compaction."""

    number: int
    """Below 2**31: in an index, the bit above says whose segment it is."""
    length: int
    sha256: bytes

    def __post_init__(self) -> None:
        check_below("number of a segment", self.number, COMPACTED)
        check_below("length of a segment", self.length, 1 << 63)


def _check_index(record: "Seal | Compact | Replace") -> None:
    """Refuse a name that cannot be part of a key, and a length or a sum that nothing has."""
    kind = record.KIND
    check_id(f"the index of a {kind}", record.index)
    check_below(f"index_bytes of a {kind}", record.index_bytes, MAX_WHOLE_BYTES + 1)
    if not isinstance(record, Compact):
        for name in ("rows", "data_bytes", "memory_bytes"):
            check_below(f"{name} of a {kind}", getattr(record, name), 1 << 63)


# -- job log


Lasts = Literal["until_released", "while_used", "unrecognised"]
"""Whether retention may release a stage. "unrecognised": no later run can find it again."""


@dataclass(frozen=True, slots=True)
class OfStage:
    """Of one incarnation of a stage."""

    record_id: str
    generation: int
    name: str
    fingerprint: str
    incarnation: str

    def __post_init__(self) -> None:
        check_name("stage name", self.name)
        check_id("a stage's fingerprint", self.fingerprint)
        check_id("a stage's incarnation", self.incarnation)


@dataclass(frozen=True, slots=True)
class Claim:
    """A driver claims the job. Only the newest claimant may write or delete."""

    KIND: ClassVar[str] = "CLAIM"
    record_id: str
    job: str
    generation: int
    layout_version: int
    by: str = ""
    """Host and process, for people; so is the time, since 1970."""
    wall_seconds: float = 0.0
    run: bool = False
    """Whether it begins a run of the job, for retention; commands and writers begin none."""

    def __post_init__(self) -> None:
        check_seconds("the time of a CLAIM", self.wall_seconds)


@dataclass(frozen=True, slots=True)
class StageUse(OfStage):
    """A driver makes a stage or plans to reuse it; the newest of a fingerprint is current."""

    KIND: ClassVar[str] = "STAGE"
    replaced: str = ""
    """Folder of the stage whose place it takes, which this record releases; "" for none."""
    wall_seconds: float = 0.0
    """Time of this use since 1970, for retention by age, never for ordering; 0 if unknown."""
    lasts: Lasts = "until_released"

    def __post_init__(self) -> None:
        OfStage.__post_init__(self)
        check_seconds("the time of a STAGE", self.wall_seconds)


@dataclass(frozen=True, slots=True)
class StageReleased(OfStage):
    """A stage's data may go, for the cause given; its path is never used again."""

    KIND: ClassVar[str] = "RELEASED"
    cause: str


# -- stage log


@dataclass(frozen=True, slots=True)
class Describe:
    """Slot 0 of a stage log: everything that producers and readers must agree on."""

    KIND: ClassVar[str] = "DESCRIBE"
    record_id: str
    generation: int
    name: str
    fingerprint: str
    incarnation: str
    schema: bytes
    """Arrow IPC schema message."""
    codec: str
    compression: str
    columns: tuple[str, ...]
    """The user's column names, for people; the schema's are c0, c1, … since names may repeat."""
    producers: int
    """M, the number of producers."""
    partitions: int
    """R, the number of subpartitions of each producer."""
    writing: Literal["batch", "log"]
    """"batch": each producer commits once, readers wait for the seal; "log": each appends, and may
    be followed while it does."""
    partitioner: str
    """"hash", "range", "round_robin", "single", "function" (of the user's) or "passthrough"
    (producer p writes subpartition p alone)."""
    keys: tuple[int, ...]
    """Positions of the key columns in the schema."""
    components: dict[str, str]
    """What the fingerprint was made of, one digest per aspect; for explanations."""
    splits: str
    """Digest of all producers' input splits; "" where unknown."""
    planning: dict[str, str]
    """Settings that decided the splits; a later run plans with them."""
    created_wall_seconds: float
    """Seconds since 1970, for people and retention by age; never for ordering."""

    def __post_init__(self) -> None:
        for name, most in (("partitions", MAX_PARTITIONS), ("producers", _MAX_PRODUCERS)):
            if (found := getattr(self, name)) > most:  # a newer version may allow more
                raise FieldError(f"DESCRIBE.{name}: expected at most {most}, found {found}")
        log = self.writing == "log"
        check_below("DESCRIBE.partitions", self.partitions, MAX_PARTITIONS + 1, 1)
        check_below("DESCRIBE.producers", self.producers, _MAX_PRODUCERS + 1, 1 if log else 0)
        if log and self.partitioner == PASSTHROUGH and self.producers != self.partitions:
            raise InvalidInputError(
                f"DESCRIBE.producers: expected one for each of {self.partitions} partitions of a "
                f"passthrough, found {self.producers}"
            )
        check_seconds("DESCRIBE.created_wall_seconds", self.created_wall_seconds)
        if any(not 0 <= key < len(self.columns) for key in self.keys):
            raise InvalidInputError(
                f"keys of a DESCRIBE must be positions of its {len(self.columns)} columns, "
                f"found={self.keys}"
            )
        if self.codec == PAIR_CODEC and len(self.columns) != 2:
            raise InvalidInputError(
                f"a DESCRIBE of pairs must name 2 columns, found={self.columns!r:.100}"
            )

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(self.columns[key] for key in self.keys)


@dataclass(frozen=True, slots=True)
class Seal:
    """Names one commit slot per producer and the index object. Readers may read behind it."""

    KIND: ClassVar[str] = "SEAL"
    record_id: str
    generation: int
    producers: int
    index: str
    index_bytes: int
    commit_slots: bytes
    """Packed little-endian u4, one per producer."""
    attempts: bytes
    """16 bytes per producer: id of the attempt whose COMMIT counts."""
    content_tags: bytes
    """32 bytes per producer: digest of the COMMIT's extents and strong checksums."""
    rows: int
    data_bytes: int
    """Bytes of all segments, as encoded."""
    memory_bytes: int

    def __post_init__(self) -> None:
        _check_index(self)
        for name, size in TABLES:
            if len(getattr(self, name)) != size * self.producers:
                raise InvalidInputError(
                    f"{name} of a SEAL must have {size} bytes for each of {self.producers} "
                    f"producers, found={len(getattr(self, name))}"
                )


@dataclass(frozen=True, slots=True)
class Compact:
    """Names another index of the same records, some of which are in compacted segments.

    Among COMPACTs with the same base, the first one counts whose author was not aborted before.
    `record_id` is the compaction's id.
    """

    KIND: ClassVar[str] = "COMPACT"
    record_id: str
    generation: int
    base: int
    """Slot of the SEAL or REPLACE whose index it rewrote. The record is void if that is not the
    newest one."""
    index: str
    """The same id: an index tells by its own name whose the compacted segments are."""
    index_bytes: int
    segments: tuple[SegmentInfo, ...]
    """The compacted segments, by number from 0."""
    extents: int
    """How many extents they hold."""

    def __post_init__(self) -> None:
        _check_index(self)
        if self.index != self.record_id:
            raise InvalidInputError(
                f"a COMPACT {self.record_id!r:.100} must name its own index, found={self.index!r}"
            )


@dataclass(frozen=True, slots=True)
class Damaged:
    """The data of these COMMITs can be neither read nor rebuilt from what is stored. The next run
    that asks for the stage runs these producers again. No other data is damaged."""

    KIND: ClassVar[str] = "DAMAGED"
    record_id: str
    generation: int
    producers: bytes
    """Packed little-endian u4, ascending."""
    commit_slots: bytes
    """Packed little-endian u4: slot of the COMMIT that counts, one per producer named."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Names another COMMIT for some producers of a sealed stage, and an index of all producers.

    Void if its author was aborted before, or if its base is not the newest SEAL or REPLACE.
    """

    KIND: ClassVar[str] = "REPLACE"
    record_id: str
    """Also the index object's name."""
    generation: int
    base: int
    """Slot of the SEAL or REPLACE that it changes."""
    index: str
    index_bytes: int
    producers: bytes
    """Packed little-endian u4, ascending; none if only the index or a compaction was damaged."""
    commit_slots: bytes
    """As in SEAL, one per producer named."""
    attempts: bytes
    """As in SEAL, one per producer named."""
    content_tags: bytes
    """As in SEAL, one per producer named."""
    rows: int
    """Of the whole stage from here on; so are the next two."""
    data_bytes: int
    memory_bytes: int
    cause: str

    def __post_init__(self) -> None:
        _check_index(self)


@dataclass(frozen=True, slots=True)
class Release:
    """Won before anything of a stage is deleted."""

    KIND: ClassVar[str] = "RELEASE"
    record_id: str
    generation: int
    cause: str


@dataclass(frozen=True, slots=True)
class Register:
    """Declares consumers whose cursors hold the stage's data."""

    KIND: ClassVar[str] = "REGISTER"
    record_id: str
    generation: int
    consumers: tuple[str, ...]
    """All that are registered from here on, not only the new ones; ascending."""
    closed: bool
    """True if there will be no others."""

    def __post_init__(self) -> None:
        if not [check_name("consumer", name) for name in self.consumers]:
            raise InvalidInputError("a REGISTER must name a consumer")


@dataclass(frozen=True, slots=True)
class ReleaseUpto:
    """Won before part of a stage of log producers is deleted. Reading begins at the newest one."""

    KIND: ClassVar[str] = "RELEASE_UPTO"
    record_id: str
    generation: int
    upto: bytes
    """Packed little-endian u4, one per producer: slot of its log below which segments may go. Never
    lower than in a record before."""
    deleted: bytes
    """As `upto`: slots below which its author knew that all data was deleted."""
    register: Register
    """The REGISTER by which it was decided."""
    cause: str


# -- producer log


@dataclass(frozen=True, slots=True)
class Commit:
    """A producer attempt's output, whole. `record_id` is the attempt's id."""

    KIND: ClassVar[str] = "COMMIT"
    record_id: str
    producer: int
    producers: int
    """M as this attempt saw it."""
    rows: int
    memory_bytes: int
    """Uncompressed Arrow bytes of the rows."""
    segments: tuple[SegmentInfo, ...]
    extents: bytes
    """A block, by subpartition: `pack_block`."""

    def __post_init__(self) -> None:
        check_id("the attempt of a COMMIT", self.record_id)
        check_below("producer of a COMMIT", self.producer, _MAX_PRODUCERS)

    def extent_array(self, partitions: int = MAX_PARTITIONS) -> npt.NDArray[np.void]:
        """Return EXTENT entries, ordered by (subpartition, first ordinal).

        Args:
            partitions: of the stage, to check the subpartitions.

        Raises:
            CorruptDataError: they are damaged, or name a subpartition that does not exist.
        """
        name = f"extents of a COMMIT: producer={self.producer} attempt={self.record_id}"
        return unpack_block(self.extents, "subpartition", EXTENT, name, groups=partitions)


@dataclass(frozen=True, slots=True)
class Abort:
    """The attempt never counts, and its segments may be deleted. In a stage's log it is about a
    compaction or a repair."""

    KIND: ClassVar[str] = "ABORT"
    record_id: str
    attempt: str
    cause: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The last record of a log. A late writer that meets it stops."""

    KIND: ClassVar[str] = "CLOSED"
    record_id: str
    cause: str


_IndexRecord = Seal | Compact | Suspect | Damaged | Replace | Abort
_Fate = Entered | Register | ReleaseUpto | Release | Closed
StageRecord = Describe | Unrecognised | _IndexRecord | _Fate
ProducerRecord = Commit | Abort | Closed
STAGE_RECORDS: RecordCodec[StageRecord] = RecordCodec(get_args(StageRecord))
PRODUCER_RECORDS: RecordCodec[ProducerRecord] = RecordCodec(get_args(ProducerRecord))
