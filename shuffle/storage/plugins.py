"""Storages that other distributions provide, found by the protocol of a URL.

A distribution registers a factory under the entry point group `durable_shuffle.storage`. The entry
point's name is the protocol, for example `sqlite` for `sqlite:///path`. docs/storage.md says what a
factory must return.

A plug-in never replaces a protocol that durable-shuffle serves itself.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.storage.contract import Storage

GROUP = "durable_shuffle.storage"
"""The group of the entry points. A factory takes (url, options) and returns a `Storage`."""

_NEEDED = ("read", "read_range", "read_ranges", "put", "put_if_absent", "list", "delete")


def open_plugin(protocol: str, url: str, options: Mapping[str, object]) -> Storage | None:
    """Return the storage that a plug-in makes for `url`, or None if no plug-in serves it.

    Raises:
        InvalidInputError: two plug-ins claim the protocol, the plug-in fails, or its factory
            returns no Storage. The message names the plug-in's distribution.
    """
    found = list(entry_points(group=GROUP, name=protocol))
    if not found:
        return None
    if len({point.value for point in found}) > 1:
        names = ", ".join(sorted(_name(point) for point in found))
        raise InvalidInputError(f"{protocol}: more than one plug-in serves it: {names}; keep one")
    who = f"{redact(url, options)}: the storage plug-in {_name(found[0])}"
    try:
        storage = found[0].load()(url, options)
    except DurableShuffleError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it raises, raised as ours
        text = redact(f"{type(error).__name__}: {error}", options)
        raise InvalidInputError(f"{who} does not open it: {text}") from None
    missing = [name for name in _NEEDED if not callable(getattr(storage, name, None))]
    if missing or not isinstance(getattr(storage, "description", None), str):
        raise InvalidInputError(f"{who} gives no Storage: missing={missing or ['description']}")
    return storage  # type: ignore[no-any-return]


def _name(point: EntryPoint) -> str:
    distribution = point.dist.name if point.dist is not None else "(unknown distribution)"
    return f"{distribution} ({point.value})"
