"""Appends SUSPECT: a reader that met damage tells the next driver where to look.

It costs nothing until a read has failed, and then the error of that read counts: if the note cannot
be written (a reader may have no right to write), nothing is said about it.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.records import STAGE_RECORDS, Seal
from durable_shuffle.shuffle.log.stage import StageHandle, StageState, read_state, stage_log
from durable_shuffle.shuffle.log.stage_notes import MOST_CHARS, Suspect

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_IN_THE_JVM = "a task of Spark's JVM met it"


def noting(
    stage: StageHandle, items: Iterable[T], ids: IdSource, seal: Seal | None = None
) -> Iterator[T]:
    """Yield the items; if making one meets damage, note that in the stage's log and raise.

    Args:
        items: what is read of the stage.
        seal: as for `note_suspect`.
    """
    with noted(stage, ids, seal):
        yield from items


@contextmanager
def noted(stage: StageHandle, ids: IdSource, seal: Seal | None = None) -> Iterator[None]:
    """Note damage that is met in the block, which reads the stage, and raise."""
    try:
        yield
    except (CorruptDataError, NotFoundError) as error:
        note_suspect(stage, error, ids, seal)
        raise


def note_suspect(
    stage: StageHandle, error: DurableShuffleError, ids: IdSource, seal: Seal | None = None
) -> None:
    """Note in the log of a sealed stage that its data cannot be read, unless that is noted.

    Args:
        error: what the reader met.
        seal: by which the stage was read; None for the one that counts.
    """

    def unless_known(state: StageState) -> Suspect | None:
        by = seal or state.seal
        if by is None or state.suspect or state.damaged or state.over is not None:
            return None
        indexes = {seal.index for seal in (state.seal, state.replaced) if seal is not None}
        return suspect_record(by, str(error), ids) if by.index in indexes else None

    if stage.describe.writing == "log":
        return  # what a stream lost cannot be computed again
    try:
        stage_log(stage).decide(read_state(stage), unless_known)
    except DurableShuffleError:
        _LOG.debug("the damage could not be noted", exc_info=True)


def suspect_record(seal: Seal, why: str, ids: IdSource) -> Suspect:
    """Return the record of a reader that read by this seal."""
    text = why.encode(errors="backslashreplace").decode()[:MOST_CHARS]
    return Suspect(ids.new_id(), seal.generation, seal.index, text)


def note_of_jvm(seal: Seal, ids: IdSource) -> bytes:
    """Return the record, encoded but not yet bound to a slot, that the JVM appends by itself."""
    return STAGE_RECORDS.encode(suspect_record(seal, _IN_THE_JVM, ids))
