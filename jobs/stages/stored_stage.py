"""A sealed stage as callers get it, and what they may do before its SEAL is written."""

from collections.abc import Callable
from dataclasses import dataclass

from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.awaited import Awaited


@dataclass(frozen=True, slots=True)
class SealedRows:
    """What is read of a sealed stage."""

    handle: StageHandle
    """Opened on the storage that tasks use."""
    seal: Seal

    @property
    def fingerprint(self) -> str:
        """Name and fingerprint, by which stages that read this one refer to it."""
        return f"{self.handle.path.name}-{self.handle.path.fingerprint}"


@dataclass(frozen=True, slots=True)
class StoredStage(SealedRows):
    """A sealed stage."""

    report: StageReport


@dataclass(frozen=True, slots=True)
class Ahead:
    """What goes on beside the writing of a stage's SEAL."""

    sealed_below: Callable[[], None] = lambda: None
    """Returns when all that the map tasks read is sealed, or raises."""
    awaited: tuple[Awaited, ...] = ()
    """The SEALs that `sealed_below` waits for."""
    foreseen: Callable[[SealedRows], None] = lambda _: None
    """Is told the stage as it will be once its SEAL is written. Tasks that read it may be prepared
    then, and store something when `ensure` returns that very seal."""

    def starts_behind(self, entered: Callable[[], None]) -> None:
        """Return when map tasks may start, or raise."""
        entered()
        self.sealed_below()


ALONE = Ahead()
"""Nothing goes on beside."""
