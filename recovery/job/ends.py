"""How work ends: the order of calls and records of each way of stopping. Pure.

Each mode has a row of steps, after FLIP-46. Optional calls that nobody offers are left out. Its
FINITE row is of work without checkpoints. Here a successor may have to make the call of SHUTDOWN,
so PREPARED holds the state behind the last row, as in DRAIN. After a failure or a cancel only CLOSE
is left. A successor that finds PREPARED or COMMITTED in the log goes on behind that step. Steps
whose names begin with WIN are durable records, the others are calls.

`prepare` and `shutdown` are made only where the input has truly ended. Nothing is published before
the record stands that says so: SHUTDOWN comes behind a record that was begun after PREPARE.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum

from durable_shuffle.serialization.errors import InvalidInputError


class StopMode(StrEnum):
    """Ways to end."""

    FINITE = "FINITE"
    """The input ended by itself. Nobody can ask for it."""
    DRAIN = "DRAIN"
    """Take nothing new in, process and publish everything, end for good."""
    SUSPEND = "SUSPEND"
    """Stop where we are, to be continued."""
    CANCEL = "CANCEL"
    """Stop at once. An error ends like this, too. What was acknowledged stays."""


class EndStep(StrEnum):
    """What is done on the way."""

    MAX_WATERMARK = "max_watermark"
    PREPARE = "prepare_to_shutdown"
    SNAPSHOT = "snapshot"
    WIN_ACK = "ACK"
    WIN_PREPARED = "PREPARED"
    NOTIFY = "notify"
    SHUTDOWN = "shutdown"
    WIN_COMMITTED = "COMMITTED"
    WIN_FINISHED = "FINISHED"
    CLOSE = "close"


ORDERS: Mapping[StopMode, tuple[EndStep, ...]] = {
    StopMode.FINITE: (
        EndStep.PREPARE,
        EndStep.SNAPSHOT,
        EndStep.WIN_PREPARED,
        EndStep.SHUTDOWN,
        EndStep.WIN_COMMITTED,
        EndStep.WIN_FINISHED,
        EndStep.CLOSE,
    ),
    StopMode.DRAIN: (
        EndStep.MAX_WATERMARK,
        EndStep.PREPARE,
        EndStep.SNAPSHOT,
        EndStep.WIN_PREPARED,
        EndStep.NOTIFY,
        EndStep.SHUTDOWN,
        EndStep.WIN_COMMITTED,
        EndStep.WIN_FINISHED,
        EndStep.CLOSE,
    ),
    StopMode.SUSPEND: (EndStep.SNAPSHOT, EndStep.WIN_ACK, EndStep.NOTIFY, EndStep.CLOSE),
    StopMode.CANCEL: (EndStep.CLOSE,),
}
OPTIONAL = frozenset((EndStep.MAX_WATERMARK, EndStep.PREPARE, EndStep.NOTIFY, EndStep.SHUTDOWN))


class StopOrder:
    """One walk along a row of `ORDERS`.

    Args:
        hooks: optional calls that somebody offers.
        behind: the newest record of an earlier life, PREPARED or COMMITTED; None if there is none.
    """

    def __init__(
        self,
        mode: StopMode,
        hooks: Collection[EndStep] = OPTIONAL,
        *,
        behind: EndStep | None = None,
    ) -> None:
        order = ORDERS[mode]
        if behind is not None:
            if behind not in (EndStep.WIN_PREPARED, EndStep.WIN_COMMITTED) or behind not in order:
                raise InvalidInputError(f"{mode} does not go on behind {behind}")
            order = order[order.index(behind) + 1 :]
        self.mode = mode
        self._left = [s for s in order if s not in OPTIONAL or s in hooks]

    def next(self) -> EndStep | None:
        """Return the step to take now, None at the end."""
        return self._left[0] if self._left else None

    def done(self, step: EndStep) -> None:
        """The step was taken."""
        self._expect(step)
        del self._left[0]

    def failed(self, step: EndStep) -> None:
        """The step was not taken, or nobody knows. Only CLOSE is left, unless that has failed."""
        self._expect(step)
        self._left = [] if step is EndStep.CLOSE else [EndStep.CLOSE]

    def _expect(self, step: EndStep) -> None:
        if self.next() is not step:
            raise InvalidInputError(f"{self.mode}: expected {self.next()}, found {step}")


def combined_stop(current: StopMode | None, asked: StopMode) -> StopMode:
    """Return the stop that counts when `asked` comes during `current`.

    Raises:
        InvalidInputError: FINITE cannot be asked for; of two others the first one counts, only
            CANCEL may overtake it.
    """
    if asked is StopMode.FINITE:
        raise InvalidInputError("a finite end comes from the sources; ask for a drain")
    if current is None or asked is StopMode.CANCEL or asked is current:
        return asked
    raise InvalidInputError(f"the job stops by {current} already, {asked} comes too late")
