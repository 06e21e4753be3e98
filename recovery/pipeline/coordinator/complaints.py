"""Complaints of tasks, and requests to restart a part: many of them cause one restart. Pure."""

import math
from collections.abc import Collection


class RestartRequests:
    """A complaint of an attempt that was replaced since then says nothing about the new attempt.

    Times are of one monotonic clock, in seconds.

    Args:
        delay_seconds: from the first complaint to the restart, so that a part that cannot run is
            not restarted in a tight loop.
    """

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        self._due: dict[str, tuple[float, str]] = {}
        self._since: dict[str, int] = {}

    def complain(self, part: str, epoch: int, cause: str, now: float) -> bool:
        """Take in a complaint; return whether it counts.

        Args:
            epoch: of the attempt that complains.
        """
        if epoch < self._since.get(part, 0):
            return False
        self._due.setdefault(part, (now + self._delay_seconds, cause))
        return True

    def restarted(self, part: str, epoch: int) -> None:
        """Ignore complaints of attempts of this part that are older than `epoch`."""
        self._since[part] = max(epoch, self._since.get(part, 0))

    def forget(self, part: str) -> None:
        """Do not restart a part that was dropped."""
        self._due.pop(part, None)

    def due(self, now: float, parts: Collection[str]) -> list[tuple[str, str]]:
        """Return (part, first cause) of each restart whose time has come, once.

        Args:
            parts: all running parts; requests for other parts are void.
        """
        ready = {part: cause for part, (when, cause) in self._due.items() if when <= now}
        for part in ready:
            del self._due[part]
        return [(part, cause) for part, cause in ready.items() if part in parts]

    def next_when(self) -> float | None:
        """Return when `due` will return something, None if there are no complaints."""
        when = min((when for when, _ in self._due.values()), default=math.inf)
        return None if when == math.inf else when
