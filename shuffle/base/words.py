"""The words for what a stage is, and for what a call does with it.

Every output has these words and no other ones for the same facts: `explain`, reports, progress, log
lines, commands, the page and the documentation.
"""

from enum import StrEnum


class _Word(StrEnum):
    meaning: str
    """One sentence for people; the glossary has the same."""

    def __new__(cls, word: str, meaning: str) -> "_Word":
        made = str.__new__(cls, word)
        made._value_ = word
        made.meaning = meaning
        return made

    def __repr__(self) -> str:
        """Return what a text of these letters shows: users print lists of them."""
        return repr(self.value)


class StageStatus(_Word):
    """How much of a stage is on storage."""

    STORED = "stored", "Every map task has committed, and the stage is sealed."
    PARTIAL = "partial", "It is not sealed. Map tasks that have committed need not run again."
    ABSENT = "absent", "No stage is there that counts for this call."
    DAMAGED = "damaged", "It was stored, and data of some map tasks is lost."
    RELEASED = "released", "It was deleted, or is about to be."
    OPEN = "open", "Producers append to it."
    ENDED = "ended", "Producers appended to it, and none will append again."


class StageAction(_Word):
    """What a call does with a stage."""

    REUSED = "reused", "Nothing runs."
    RESUMED = "resumed", "The map tasks run that have not committed."
    REPAIRED = "repaired", "The map tasks run whose data is lost."
    COMPUTED = "computed", "All map tasks run."
    LEFT_TO_SPARK = "left to Spark", "Spark's own shuffle moves the rows, and nothing is stored."
    NOT_NEEDED = "not needed", "What reads it is stored."


def status_of(*, released: bool, sealed: bool, damaged: bool = False) -> StageStatus:
    """Return the status of a stage whose map tasks commit once."""
    if released:
        return StageStatus.RELEASED
    if damaged:
        return StageStatus.DAMAGED
    return StageStatus.STORED if sealed else StageStatus.PARTIAL


def growing_status(ended: int, producers: int, *, released: bool = False) -> StageStatus:
    """Return the status of a stage to which producers append, of which some have ended for good."""
    if released:
        return StageStatus.RELEASED
    return StageStatus.ENDED if ended == producers else StageStatus.OPEN


def growing_text(ended: int, producers: int) -> str:
    """Return the same for people."""
    return f"{growing_status(ended, producers)}, {ended} of {producers} producers ended"
