"""When a checkpoint has been passed by all producers of a consumer. Pure.

Strategy: per producer the highest marker that was passed. A checkpoint is complete once every
producer that has not ended passed it. A consumer that restarts gets a floor, the highest marker
that its acknowledged records passed: what is not above it is dropped and never waited for, since
one of the producers may have sent it before the restart and will not send it again.
"""

from collections.abc import Iterable

from durable_shuffle.serialization.errors import InvalidInputError


class MarkerAlignment:
    """The markers of one view.

    Args:
        producers: all that the view reads of.
        floor: checkpoints up to this id, inclusive, are over.
    """

    def __init__(self, producers: Iterable[int], floor: int = 0) -> None:
        self._passed = dict.fromkeys(producers, floor)
        self._ended: set[int] = set()
        self.floor = floor
        """Checkpoints up to this id are over."""

    def passed(self, producer: int, checkpoint: int) -> int | None:
        """Take a marker in; return the checkpoint that is complete by it, None if none is.

        Of several the highest is returned: it covers the others.

        Raises:
            InvalidInputError: an unknown producer.
        """
        if producer not in self._passed:
            raise InvalidInputError(f"no such producer: {producer}")
        if checkpoint > self._passed[producer]:
            self._passed[producer] = checkpoint
        return self._complete()

    def ended(self, producer: int) -> int | None:
        """Take in that no marker comes from this producer any more; return as `passed`."""
        if producer not in self._passed:
            raise InvalidInputError(f"no such producer: {producer}")
        self._ended.add(producer)
        return self._complete()

    def _complete(self) -> int | None:
        live = [at for producer, at in self._passed.items() if producer not in self._ended]
        reached = min(live) if live else max(self._passed.values(), default=self.floor)
        if reached <= self.floor:
            return None
        self.floor = reached
        return reached
