"""The job log's records together, and its codec."""

from dataclasses import dataclass
from typing import ClassVar, get_args

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.shuffle.log.field_checks import check_seconds
from durable_shuffle.shuffle.log.records import (
    Claim,
    Closed,
    OfStage,
    StageReleased,
    StageUse,
)


@dataclass(frozen=True, slots=True)
class StageBegun(OfStage):
    """A writer makes a stage that does not count before STAGE names it; RELEASED gives it up."""

    KIND: ClassVar[str] = "BEGUN"


@dataclass(frozen=True, slots=True)
class DriverEnded:
    """The driver that claimed the job says that it writes nothing more. Void behind a newer CLAIM.

    It decides nothing: a driver that says nothing may have died.
    """

    KIND: ClassVar[str] = "ENDED"
    record_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class StagesGone:
    """Nothing is left of the data of released stages."""

    KIND: ClassVar[str] = "GONE"
    record_id: str
    generation: int
    folders: tuple[str, ...]
    wall_seconds: float
    """Since 1970."""
    logs: bool
    """Whether their logs went, too. Then they are forgotten, which is safe only once nobody is
    alive who knew them."""

    def __post_init__(self) -> None:
        check_seconds("the time of a GONE", self.wall_seconds)


JobRecord = Claim | DriverEnded | StageBegun | StageUse | StageReleased | StagesGone | Closed
JOB_RECORDS: RecordCodec[JobRecord] = RecordCodec(get_args(JobRecord))
