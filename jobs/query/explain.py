"""What a query would do: which exchanges are committed and which would run. Plain values."""

from dataclasses import dataclass
from typing import Literal

State = Literal["committed", "partly committed", "missing", "not needed"]


@dataclass(frozen=True, slots=True)
class ExchangeExplanation:
    """One durable exchange, or the query's result rows."""

    number: int
    """From 0. An exchange has a higher number than the exchanges that it reads."""
    kind: str
    """"hash", "single", "round_robin", "range"; or "passthrough" for the query's result rows, which
    are stored if they aggregate a large join."""
    partitions: int
    """0 if the number is known only after planning."""
    columns: tuple[str, ...]
    fingerprint: str
    reads: tuple[int, ...]
    """Numbers of the exchanges that this one reads directly."""
    state: State
    why: str

    def __str__(self) -> str:
        columns = ", ".join(self.columns[:4]) + (", …" if len(self.columns) > 4 else "")
        reads = f" reads {', '.join(map(str, self.reads))}" if self.reads else ""
        what = f"{self.kind}({self.partitions})" if self.partitions else "the query's rows"
        return f"{self.number:>3}  {self.state:<16}  {what} [{columns}]{reads}: {self.why}"


@dataclass(frozen=True, slots=True)
class QueryExplanation:
    """All exchanges of a query, lower ones first."""

    name: str
    exchanges: tuple[ExchangeExplanation, ...]
    native: tuple[str, ...]
    """Exchanges that Spark runs itself, each with the reason."""

    @property
    def hit(self) -> bool:
        """True if no producer would run."""
        return all(e.state in ("committed", "not needed") for e in self.exchanges)

    @property
    def why(self) -> str:
        """A summary in one line."""
        running = [e for e in self.exchanges if e.state in ("missing", "partly committed")]
        if not running:
            return "every exchange that is needed is committed"
        return f"{len(running)} of {len(self.exchanges)} exchanges would run"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.why}", *map(str, self.exchanges)]
        return "\n".join([*lines, *(f"native: {text}" for text in self.native)])
