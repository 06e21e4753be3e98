"""Side-by-side timing on a noisy machine: the cases take turns, medians and ratios are reported."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of each case, one per round; round i of all cases ran next to each other."""

    seconds: Mapping[str, list[float]]

    def median(self, case: str) -> float:
        return statistics.median(self.seconds[case])

    def spread(self, case: str) -> tuple[float, float]:
        """Smallest and largest seconds."""
        return min(self.seconds[case]), max(self.seconds[case])

    def ratio(self, case: str, base: str) -> float:
        """Median over the rounds of case / base within a round."""
        pairs = zip(self.seconds[case], self.seconds[base], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def table(self, base: str) -> str:
        """Return one line per case: median, spread, ratio to `base`."""
        lines = [f"{'case':<28} {'median s':>9} {'min':>7} {'max':>7} {'ratio':>6}"]
        for case in self.seconds:
            low, high = self.spread(case)
            lines.append(
                f"{case:<28} {self.median(case):>9.2f} {low:>7.2f} {high:>7.2f} "
                f"{self.ratio(case, base):>6.2f}"
            )
        return "\n".join(lines)


def interleave(
    cases: Mapping[str, Callable[[], object]], *, rounds: int, warmups: int = 1
) -> Timings:
    """Time every case `rounds` times, in turn; `warmups` rounds before are not counted.

    A case that another process runs returns the seconds that it took there, a float.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(warmups + rounds):
        for name, run in cases.items():
            start = time.perf_counter()
            answer = run()
            took = answer if isinstance(answer, float) else time.perf_counter() - start
            if turn >= warmups:
                seconds[name].append(took)
    return Timings(seconds)
