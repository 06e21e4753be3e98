"""The options of the data source, checked. The error for a wrong name suggests the right one."""

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
    *READ_OPTIONS, "startingOffsets", "maxRecordsPerTrigger", "maxBytesPerTrigger", "maxWaitMillis",
    "consumer", "consumers",
)  # fmt: skip
WRITE_OPTIONS = (
    *_PLACE, "partitions", "keys", "producer", "producers", "consumers", "compression",
    "keepReplaced", "keepCommitted",
)  # fmt: skip
_KNOWN = tuple(dict.fromkeys((*STREAM_READ_OPTIONS, *WRITE_OPTIONS)))

DEFAULT_PARTITIONS = 8
"""Number of partitions of a new stage, if the writer does not give one."""
DEFAULT_WAIT_MILLIS = 1000
"""How long a trigger of a stream reader waits for new rows, if `maxWaitMillis` is not given."""


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a stage is. The storage options may hold credentials, so the repr hides them."""

    url: str
    job: str
    stage: str
    storage_options: str
    """A JSON object, "" for none."""

    def __repr__(self) -> str:
        return f"StagePlace(job={self.job!r}, stage={self.stage!r})"

    def storage(self) -> RetryingStorage:
        """Return a new storage object; tasks and planners run in separate processes."""
        return open_storage(self.url, _storage_options(self.storage_options))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a reader."""

    place: StagePlace
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

    place: StagePlace
    partitions: int | None
    keys: tuple[str, ...]
    producer: int
    producers: int | None
    consumers: tuple[str, ...]
    compression: str
    keeps_replaced: bool
    """True if an overwrite must not release the stage that it replaces."""
    keeps_committed: bool
    """True if a repeated batch may have another number of rows; the one committed first stays."""


def read_options(options: Mapping[str, str], *, stream: bool) -> ReadOptions:
    """Return the options of a reader.

    Raises:
        InvalidInputError: an unknown option or a bad value; names it.
    """
    given = _checked(options, STREAM_READ_OPTIONS if stream else READ_OPTIONS, "reader")
    consumer = given.get("consumer", "")
    consumers = _names(given, "consumers")
    for name in (consumer, *consumers):
        if name:
            check_name("consumer", name)
    if consumers and consumer not in consumers:
        raise InvalidInputError(
            f"option 'consumers' declares all readers and must name this one: consumer={consumer!r}"
            f" consumers={', '.join(consumers)}"
        )
    wait_millis = _number(given, "maxWaitMillis", 0)
    return ReadOptions(
        _place(given),
        _names(given, "columns"),
        given.get("startingOffsets", "earliest"),
        _number(given, "maxRecordsPerTrigger", 1),
        _number(given, "maxBytesPerTrigger", 1),
        (DEFAULT_WAIT_MILLIS if wait_millis is None else wait_millis) / 1000,
        consumer,
        consumers,
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the options of a writer.

    Raises:
        InvalidInputError: an unknown option or a bad value; names it.
    """
    given = _checked(options, WRITE_OPTIONS, "writer")
    return WriteOptions(
        _place(given),
        _number(given, "partitions", 1),
        _names(given, "keys"),
        _number(given, "producer", 0) or 0,
        _number(given, "producers", 1),
        _names(given, "consumers"),
        given.get("compression", "lz4"),
        _flag(given, "keepReplaced"),
        _flag(given, "keepCommitted"),
    )


def _checked(options: Mapping[str, str], known: tuple[str, ...], who: str) -> dict[str, str]:
    """Return the options by the names in `known`; Spark ignores the case of names."""
    allowed = {name.lower(): name for name in (*known, *_OF_SPARK)}
    elsewhere = {name.lower(): name for name in _KNOWN}
    given: dict[str, str] = {}
    for name, value in options.items():
        low = str(name).lower()
        if low in allowed:
            given[allowed[low]] = str(value)
            continue
        if low in elsewhere:
            raise InvalidInputError(f"option {elsewhere[low]!r} is not one of a {who}")
        close = difflib.get_close_matches(low, list(allowed), n=1, cutoff=0.6)
        hint = f"did you mean {allowed[close[0]]!r}? " if close else ""
        raise InvalidInputError(
            f"unknown option {str(name)!r}: {hint}a {who} of format durable_shuffle takes "
            f"{', '.join(known)}"
        )
    return given


def _place(given: Mapping[str, str]) -> StagePlace:
    url = given.get("url") or given.get("path") or ""
    for name, value in (("url", url), ("job", given.get("job")), ("stage", given.get("stage"))):
        if not value:
            raise InvalidInputError(
                f"option {name!r} is missing: format durable_shuffle needs url, job and stage"
            )
    if "url" in given and "path" in given and given["url"] != given["path"]:
        raise InvalidInputError("options 'url' and 'path' are two names of one thing: give one")
    if "://" not in url and not Path(url.removeprefix("file:")).is_absolute():
        raise InvalidInputError(
            f"option 'url' must be absolute, tasks run in folders of their own: "
            f"found={redact(url)!r}"
        )
    check_name("job", given["job"])
    check_name("stage name", given["stage"])
    text = given.get("storageOptions", "")
    _storage_options(text)
    return StagePlace(url, given["job"], given["stage"], text)


def _storage_options(text: str) -> dict[str, object]:
    try:
        options = json.loads(text or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):  # the text may hold credentials
        raise InvalidInputError("option 'storageOptions' must be a JSON object for fsspec")
    return options


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the names in a comma-separated option."""
    names = tuple(part.strip() for part in given.get(name, "").split(",") if part.strip())
    if len(set(names)) != len(names):
        raise InvalidInputError(f"option {name!r} names one thing twice: {', '.join(names)}")
    return names


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"option {name!r} must be true or false, found={text!r}")
    return text == "true"


def _number(given: Mapping[str, str], name: str, minimum: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise InvalidInputError(
            f"option {name!r} must be a whole number from {minimum} on, found={text!r}"
        )
    return value
