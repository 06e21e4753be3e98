"""Names of objects: ids to keys and back. Pure. docs/format.md shows the same tree.

    <job>/log/<slot>                                      job log
    <job>/<stage>-<incarnation>/log/<slot>                stage log
    <job>/<stage>-<incarnation>/producers/p<p>/<slot>     producer log
    <job>/<stage>-<incarnation>/segments/<hh>/p<p>-<attempt>-<n>.seg
    <job>/<stage>-<incarnation>/index/<nonce>

The incarnation is a random id, so a path that was ever deleted is never used again.
"""

import re
import zlib
from dataclasses import dataclass

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError

MAX_NAME_CHARS = 100
"""Long enough to speak, short enough for every backend (S3 keys end at 1,024 bytes)."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SEGMENT = re.compile(r"p(\d{6,})-([0-9a-f]{32})-(\d+)\.seg")
_STAGE = re.compile(r"(.+)-([0-9a-f]{32})-([0-9a-f]{32})")


def check_name(what: str, name: str) -> str:
    """Return `name` if it may be part of a key.

    Raises:
        InvalidInputError: empty, too long, or with characters other than letters, digits,
            '.', '_' and '-'; the message names `what`.
    """
    if not _NAME.fullmatch(str(name)) or len(name) > MAX_NAME_CHARS:
        raise InvalidInputError(
            f"{what} must be 1 to {MAX_NAME_CHARS} letters, digits, '.', '_' or '-' and start with "
            f"a letter, digit or '_', found={name!r}"
        )
    return name


def job_log_prefix(job: str) -> str:
    """Prefix of the job log's slots, with the final '/'."""
    return f"{check_name('job', job)}/log/"


def slot_name(slot: int) -> str:
    """Zero-padded name of a slot, so that listings sort."""
    return f"{slot:010d}"


@dataclass(frozen=True, slots=True)
class StagePath:
    """Where one incarnation of one stage lives."""

    job: str
    name: str
    fingerprint: str
    incarnation: str

    @property
    def prefix(self) -> str:
        """Prefix of all objects of the stage, with the final '/'."""
        return f"{self.job}/{self.name}-{self.fingerprint}-{self.incarnation}/"

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
        name = f"p{producer:06d}-{attempt}-{number}.seg"
        spread = zlib.crc32(name.encode()) & 0xFF
        return f"{self.segments_prefix}{spread:02x}/{name}"

    def index_key(self, nonce: str) -> str:
        return f"{self.index_prefix}{nonce}"


def parse_segment_key(key: str) -> tuple[int, str, int]:
    """Return (producer, attempt, number) of a segment's key.

    Raises:
        CorruptDataError: not a name that this library gives.
    """
    match = _SEGMENT.fullmatch(key.rsplit("/", 1)[-1])
    if match is None:
        raise CorruptDataError(f"not a segment name: key={key!r}")
    return int(match[1]), match[2], int(match[3])


def parse_stage_folder(job: str, folder: str) -> StagePath | None:
    """Return the stage path of a folder directly below the job's, or None if it is not one."""
    match = _STAGE.fullmatch(folder)
    return StagePath(job, match[1], match[2], match[3]) if match else None
