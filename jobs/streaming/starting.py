"""Where a query without a checkpoint begins to read."""

import json
from dataclasses import replace

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.stream.offset import StreamOffset, offset_from_json
from durable_shuffle.shuffle.stream.scan import StageScan


def starting_offset(scan: StageScan, text: str) -> StreamOffset:
    """Return the offset that option `startingOffsets` names.

    Raises:
        InvalidInputError: neither "earliest", "latest" nor an offset; or an offset after the end.
        NotFoundError: rows at the offset were released; names the earliest offset.
        IncompatibleError: it is an offset of another stage.
    """
    word = text.strip().lower()
    if word == "earliest":
        return scan.earliest()
    if word == "latest":
        return scan.latest()
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidInputError(
            f"option 'startingOffsets' must be earliest, latest or an offset as JSON, "
            f"found={text!r:.200}"
        ) from None
    offset = offset_from_json(found, stage=scan.stage.path.folder, widths=scan.widths)
    latest = scan.latest()
    for mine, end in zip(offset.lanes, latest.lanes, strict=True):
        if any(at > last for at, last in zip(mine.next, end.next, strict=True)):
            raise InvalidInputError(
                f"option 'startingOffsets' lies behind the end: {list(mine.next)}, rows per "
                f"subpartition are {list(end.next)}"
            )
    scan.check_standing(offset)
    # a user's slots are not trusted, because wrong ones could skip rows
    return replace(offset, lanes=tuple(replace(lane, slot=0) for lane in offset.lanes))
