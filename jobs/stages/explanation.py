"""What a call would do: the answer of `explain`."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

State = Literal["committed", "partly committed", "missing", "left to Spark", "not needed"]


def in_python(why: str) -> str:
    """Return the end of an explanation: why the rows go through Python workers, if they do."""
    return f"; rows go through Python workers: {why}" if why else ""


def stage_title(kind: str, partitions: int, columns: Sequence[str]) -> str:
    """Return kind, partitions and first columns of a stage, for people."""
    names = ", ".join(columns[:4]) + (", …" if len(columns) > 4 else "")
    return f"{kind}({partitions}) [{names}]" if partitions else f"{kind} [{names}]"


@dataclass(frozen=True, slots=True)
class StageExplanation:
    """One stage: a checkpoint, a repartition, a Python stage, an exchange or rows of a query."""

    number: int
    """From 0. A stage of a query has a higher number than the stages that it reads."""
    kind: str
    """"hash", "single", "round_robin", "range" or "user"; "passthrough" if the partitions are those
    of the input. The rows of a query have this kind too: they are stored if they aggregate a large
    join."""
    partitions: int
    """0 if the number is known only after planning."""
    columns: tuple[str, ...]
    fingerprint: str
    reads: tuple[int, ...]
    """Numbers of the stages of the query that this one reads directly."""
    state: State
    why: str
    why_python: str
    """Why Python workers encode the rows; "" if the JVM does, or user code makes the rows."""
    may_change: bool = False
    """True if the sizes of stages that run first may make it unnecessary, or a different one."""

    def __str__(self) -> str:
        reads = f" reads {', '.join(map(str, self.reads))}" if self.reads else ""
        title = stage_title(self.kind, self.partitions, self.columns)
        may_change = "; may change with the sizes of others" if self.may_change else ""
        head = f"{self.number:>3}  {self.state:<16}  {title}{reads}: {self.why}"
        return head + may_change + in_python(self.why_python)


@dataclass(frozen=True, slots=True)
class Explanation:
    """All stages of a call; of a query, lower ones first."""

    name: str
    stages: tuple[StageExplanation, ...]
    native: tuple[str, ...] = ()
    """Exchanges of a query that Spark runs itself, each with the reason."""
    adapted: tuple[str, ...] = ()
    """What was planned again because of stages that are sealed."""

    @property
    def hit(self) -> bool:
        """True if every stage that is needed is stored; producers that it lacks would still run."""
        return not any(stage.state in ("missing", "left to Spark") for stage in self.stages)

    @property
    def why(self) -> str:
        """The reason, if there is one stage, else a summary in one line."""
        if len(self.stages) == 1:
            return self.stages[0].why
        done = ("committed", "not needed")
        running = [stage for stage in self.stages if stage.state not in done]
        if not running:
            return "every stage that is needed is committed"
        return f"{len(running)} of {len(self.stages)} stages would run"

    def __str__(self) -> str:
        outcome = f"{'hit' if self.hit else 'miss'}, {self.why}"
        if len(self.stages) == 1 and not self.native:
            (stage,) = self.stages
            return f"{self.name}-{stage.fingerprint}: {outcome}{in_python(stage.why_python)}"
        lines = [f"{self.name}: {outcome}", *map(str, self.stages), *self.adapted]
        return "\n".join([*lines, *(f"native: {text}" for text in self.native)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
