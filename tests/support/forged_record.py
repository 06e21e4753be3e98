"""Changes what a stored control record says, as nobody writes it; its checksum is right."""

from collections.abc import Callable, Mapping
from typing import Any

from durable_shuffle.serialization.control import bound, decode_control, encode_control
from durable_shuffle.shuffle.log.slot_log import SlotLog

Change = Callable[[dict[str, Any]], Mapping[str, object]]
"""Given a record's fields, those that shall be other ones."""


def forge(log: SlotLog, slot: int, change: Change, *, kind: str = "", to: int | None = None) -> str:
    """Change the record of a slot; return its key.

    Args:
        kind: its kind from now on; by default as it was.
        to: write it into this slot instead.
    """
    data = log.read(slot)
    assert data is not None
    record = decode_control(data, name=log.key(slot))
    fields = {**record.fields, **change(dict(record.fields))}
    key = log.key(slot if to is None else to)
    log.storage.delete([key])
    log.storage.put(key, [bound(encode_control(kind or record.kind, fields), key)])
    return key
