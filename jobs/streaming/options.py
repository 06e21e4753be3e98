"""Checks the options of the data source. For a misspelled option the error names the right one."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import RetryingStorage

_PLACE = ("url", "path", "job", "stage", "storageOptions")
_OF_SPARK = ("checkpointLocation", "queryName")
"""Options that Spark itself adds."""
READ_OPTIONS = (*_PLACE, "columns")
STREAM_READ_OPTIONS = (
    *READ_OPTIONS,
    "startingOffsets",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "maxWaitMillis",
    "consumer",
    "consumers",
)
WRITE_OPTIONS = (
    *_PLACE,
    "partitions",
    "keys",
    "producer",
    "producers",
    "consumers",
    "compression",
    "keepReplaced",
)
_KNOWN = tuple(dict.fromkeys((*STREAM_READ_OPTIONS, *WRITE_OPTIONS)))

DEFAULT_PARTITIONS = 8
"""Number of partitions of a new stage, if the writer does not give one."""
DEFAULT_WAIT_MILLIS = 1000
"""How long a trigger of a stream reader waits for new rows, if `maxWaitMillis` is not given."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stage is. The storage options may hold credentials, so the repr hides them."""

    url: str
    job: str
    stage: str
    storage_options: str
    """A JSON object, "" for none."""

    def __repr__(self) -> str:
        return f"Place(job={self.job!r}, stage={self.stage!r})"

    def storage(self) -> RetryingStorage:
        """Return a new storage object; tasks and planners run in separate processes."""
        return open_storage(self.url, _storage_options(self.storage_options))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a reader."""

    place: Place
    columns: tuple[str, ...]
    """() for all."""
    starting: str
    """"earliest", "latest" or an offset as JSON."""
    most_rows: int | None
    most_bytes: int | None
    wait_seconds: float
    """How long a trigger of a stream waits for new rows, in seconds."""
    consumer: str
    """Name under which the reader acknowledges rows; "" for none."""
    consumers: tuple[str, ...]
    """All declared consumers; rows that all of them have read may be deleted. () for never."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a writer.

    Options that decide the shape of a stage are used when the writer makes the stage. For a stage
    that exists, they must match it.
    """

    place: Place
    partitions: int | None
    keys: tuple[str, ...]
    producer: int
    producers: int | None
    consumers: tuple[str, ...]
    compression: str
    keeps_replaced: bool
    """True if an overwrite must not release the stage that it replaces."""


def read_options(options: Mapping[str, str], *, stream: bool) -> ReadOptions:
    """Return the options of a reader.

    Raises:
        InvalidInputError: an unknown one, or a bad value; names it.
    """
    found = _checked(options, STREAM_READ_OPTIONS if stream else READ_OPTIONS, "reader")
    consumer = found.get("consumer", "")
    consumers = _names(found, "consumers")
    for name in (consumer, *consumers):
        if name:
            check_name("consumer", name)
    if consumers and consumer not in consumers:
        raise InvalidInputError(
            f"option 'consumers' declares all readers and must name this one: consumer={consumer!r}"
            f" consumers={', '.join(consumers)}"
        )
    wait_millis = _number(found, "maxWaitMillis", 0)
    return ReadOptions(
        _place(found),
        _names(found, "columns"),
        found.get("startingoffsets", "earliest"),
        _number(found, "maxRecordsPerTrigger", 1),
        _number(found, "maxBytesPerTrigger", 1),
        (DEFAULT_WAIT_MILLIS if wait_millis is None else wait_millis) / 1000,
        consumer,
        consumers,
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the options of a writer.

    Raises:
        InvalidInputError: an unknown one, or a bad value; names it.
    """
    found = _checked(options, WRITE_OPTIONS, "writer")
    return WriteOptions(
        _place(found),
        _number(found, "partitions", 1),
        _names(found, "keys"),
        _number(found, "producer", 0) or 0,
        _number(found, "producers", 1),
        _names(found, "consumers"),
        found.get("compression", "lz4"),
        _flag(found, "keepReplaced"),
    )


def _checked(options: Mapping[str, str], known: tuple[str, ...], who: str) -> dict[str, str]:
    """Return the options by lower-case name."""
    found = {str(name).lower(): str(value) for name, value in options.items()}
    allowed = {name.lower(): name for name in (*known, *_OF_SPARK)}
    elsewhere = {name.lower(): name for name in _KNOWN}
    for name in options:
        low = str(name).lower()
        if low in allowed:
            continue
        if low in elsewhere:
            raise InvalidInputError(f"option {elsewhere[low]!r} is not one of a {who}")
        close = difflib.get_close_matches(low, list(allowed), n=1, cutoff=0.6)
        hint = f"did you mean {allowed[close[0]]!r}? " if close else ""
        raise InvalidInputError(
            f"unknown option {str(name)!r}: {hint}a {who} of format durable_shuffle takes "
            f"{', '.join(known)}"
        )
    return found


def _place(found: Mapping[str, str]) -> Place:
    url = found.get("url") or found.get("path") or ""
    for name, value in (("url", url), ("job", found.get("job")), ("stage", found.get("stage"))):
        if not value:
            raise InvalidInputError(
                f"option {name!r} is missing: format durable_shuffle needs url, job and stage"
            )
    if "url" in found and "path" in found and found["url"] != found["path"]:
        raise InvalidInputError("options 'url' and 'path' are two names of one thing: give one")
    if "://" not in url and not Path(url.removeprefix("file:")).is_absolute():
        raise InvalidInputError(
            f"option 'url' must be absolute, tasks run in folders of their own: "
            f"found={redact(url)!r}"
        )
    check_name("job", found["job"])
    check_name("stage name", found["stage"])
    text = found.get("storageoptions", "")
    _storage_options(text)
    return Place(url, found["job"], found["stage"], text)


def _storage_options(text: str) -> dict[str, object]:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        # its text may hold credentials
        raise InvalidInputError(
            "option 'storageOptions' must be a JSON object for fsspec"
        ) from None
    return found


def _names(found: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the names in a comma-separated option."""
    names = tuple(part.strip() for part in found.get(name.lower(), "").split(",") if part.strip())
    if len(set(names)) != len(names):
        raise InvalidInputError(f"option {name!r} names one thing twice: {', '.join(names)}")
    return names


def _flag(found: Mapping[str, str], name: str) -> bool:
    text = found.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"option {name!r} must be true or false, found={text!r}")
    return text == "true"


def _number(found: Mapping[str, str], name: str, least: int) -> int | None:
    text = found.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidInputError(
            f"option {name!r} must be a whole number from {least} on, found={text!r}"
        )
    return value
