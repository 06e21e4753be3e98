"""How far parts of a pipeline are, and how far behind, as it is reported outside. Pure.

Only what was asked for is reported, only strictly forwards. A task that starts anew comes back from
behind: that is seen and not said. After a reconnect everything is reported again, in full; what was
dropped is reported as such at once, and then forgotten.

Lag: samples remember how much was there when; a consumer that has got to n is as late as the oldest
sample that has more than n. Samples are thinned out with age: exact enough for people.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far one part is."""

    records: int = -1
    """Behind it; -1: not known yet."""
    final: bool = False
    """Nothing will come any more."""


class Frontiers:
    """The frontiers of one pipeline."""

    def __init__(self) -> None:
        self._seen: dict[str, Frontier] = {}
        self._reported: dict[str, Frontier] = {}
        """What was asked for, with what was said of it last."""
        self._dropped: list[str] = []

    def ask(self, parts: Collection[str]) -> None:
        """Somebody outside knows of these parts: report them from here on."""
        for part in parts:
            self._reported.setdefault(part, Frontier())

    def seen(self, part: str, frontier: Frontier) -> None:
        """A part is there now, wherever it was before."""
        self._seen[part] = frontier

    def drop(self, part: str) -> bool:
        """A part is dropped: say so with the next report. Return False if nobody had asked."""
        self._seen.pop(part, None)
        if self._reported.pop(part, None) is None:
            return False
        self._dropped.append(part)
        return True

    def reset(self, parts: Collection[str]) -> None:
        """A new listener knows these parts alone: report them again, in full."""
        self._reported = {part: Frontier() for part in parts}
        self._dropped = []

    def report(self) -> tuple[Mapping[str, Frontier], tuple[str, ...]]:
        """Return what has advanced since the last report, and what was dropped."""
        found: dict[str, Frontier] = {}
        for part, said in self._reported.items():
            seen = self._seen.get(part)
            if seen is None or said.final:
                continue
            ahead = Frontier(max(seen.records, said.records), seen.final)
            if ahead != said:
                found[part] = self._reported[part] = ahead
        dropped, self._dropped = tuple(self._dropped), []
        return found, dropped

    @property
    def asked(self) -> Collection[str]:
        """Parts that are reported."""
        return self._reported.keys()


_SAMPLES = 512


class Produced:
    """What one stage held at which time. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, records: int, now: float) -> None:
        """Take note of how many records there are."""
        if self._samples and records <= self._samples[-1][1]:
            return
        if len(self._samples) >= _SAMPLES:  # forget every other one, the oldest stays
            self._samples = deque(list(self._samples)[::2])
        self._samples.append((now, records))

    def lag(self, consumed: int, now: float) -> tuple[int, float]:
        """Return how many records a consumer is behind, and since when, in seconds."""
        if not self._samples or self._samples[-1][1] <= consumed:
            return 0, 0.0
        since = next(when for when, records in self._samples if records > consumed)
        return self._samples[-1][1] - consumed, max(0.0, now - since)
