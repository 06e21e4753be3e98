"""Which checkpoints are complete for one consumer task. Pure.

For each producer, the highest marker that was passed counts. A checkpoint is complete once every
producer that has not ended has passed it. A consumer that restarts has a floor: the highest marker
that its acknowledged records passed. Markers up to the floor are dropped and never awaited, because
a producer that sent one before the restart will not send it again.
"""

from collections.abc import Iterable

from durable_shuffle.serialization.errors import InvalidInputError


class MarkerAlignment:
    """The markers of one view.

    Args:
        producers: all producers that the view reads.
        floor: checkpoints up to this id, inclusive, are complete.
    """

    def __init__(self, producers: Iterable[int], floor: int = 0) -> None:
        self._passed = dict.fromkeys(producers, floor)
        self._ended: set[int] = set()
        self.floor = floor
        """Checkpoints up to this id are complete."""

    def passed(self, producer: int, checkpoint: int) -> int | None:
        """Take a marker in; return the checkpoint that it completes, None if there is none.

        If it completes several, return the highest one: it covers the others.

        Raises:
            InvalidInputError: the producer is unknown.
        """
        if producer not in self._passed:
            raise InvalidInputError(f"no such producer: {producer}")
        if checkpoint > self._passed[producer]:
            self._passed[producer] = checkpoint
        return self._complete()

    def ended(self, producer: int) -> int | None:
        """Take in that this producer sends no more markers; return as `passed`."""
        if producer not in self._passed:
            raise InvalidInputError(f"no such producer: {producer}")
        self._ended.add(producer)
        return self._complete()

    def is_live(self, producer: int) -> bool:
        """Whether markers of this producer are awaited."""
        return producer in self._passed and producer not in self._ended

    def _complete(self) -> int | None:
        live = [
            checkpoint
            for producer, checkpoint in self._passed.items()
            if producer not in self._ended
        ]
        reached = min(live) if live else max(self._passed.values(), default=self.floor)
        if reached <= self.floor:
            return None
        self.floor = reached
        return reached
