"""What a call would do: the answer of `explain`."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from durable_shuffle.jobs.text import assigned
from durable_shuffle.shuffle.base.words import StageAction, StageStatus

NO_TASKS = (StageAction.REUSED, StageAction.NOT_NEEDED)
"""Actions for which none of our map tasks runs, nor one of Spark's shuffle instead."""


def in_python(why: str) -> str:
    """Return the end of an explanation: why the rows go through Python workers, if they do."""
    return f"; rows go through Python workers: {why}" if why else ""


def stage_title(kind: str, partitions: int, columns: Sequence[str]) -> str:
    """Return kind, partitions and first columns of a stage, for people."""
    return assigned(f"{kind}({partitions})" if partitions else kind, (), columns)


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
    """Names of the columns of the stored rows."""
    fingerprint: str
    """Digest of everything that decides the rows."""
    reads: tuple[int, ...]
    """Numbers of the stages of the query that this one reads directly."""
    status: StageStatus
    """How much of it is stored."""
    action: StageAction
    """What the call would do with it."""
    why: str
    """The reason, for people."""
    why_python: str
    """Why Python workers encode the rows; "" if the JVM does, or user code makes the rows."""
    may_change: bool = False
    """True if the sizes of stages that run first may make it unnecessary, or a different one."""

    def __str__(self) -> str:
        reads = f" reads {', '.join(map(str, self.reads))}" if self.reads else ""
        title = stage_title(self.kind, self.partitions, self.columns)
        may_change = "; may change with the sizes of others" if self.may_change else ""
        what = f"{self.status} -> {self.action}"
        head = f"{self.number:>3}  {what:<23}  {title}{reads}: {self.why}"
        return head + may_change + in_python(self.why_python)


@dataclass(frozen=True, slots=True)
class Explanation:
    """All stages of a call; of a query, lower ones first."""

    name: str
    """Of the call's stages."""
    stages: tuple[StageExplanation, ...]
    """One for a single stage; of a query one per exchange."""
    native: tuple[str, ...] = ()
    """Exchanges of a query that Spark runs itself, each with the reason."""
    adapted: tuple[str, ...] = ()
    """What was planned again because of stages that are sealed."""

    @property
    def stored(self) -> bool:
        """True if every stage that is needed is stored: no map task would run."""
        return all(stage.action in NO_TASKS for stage in self.stages)

    @property
    def why(self) -> str:
        """The reason, if there is one stage, else a summary in one line."""
        if len(self.stages) == 1:
            return self.stages[0].why
        running = [stage for stage in self.stages if stage.action not in NO_TASKS]
        if not running:
            return "every stage that is needed is stored"
        return f"{len(running)} of {len(self.stages)} stages would run"

    def __str__(self) -> str:
        if len(self.stages) == 1 and not self.native:
            (stage,) = self.stages
            what = f"{stage.status} -> {stage.action}: {stage.why}"
            return f"{self.name}-{stage.fingerprint}: {what}{in_python(stage.why_python)}"
        lines = [f"{self.name}: {self.why}", *map(str, self.stages), *self.adapted]
        return "\n".join([*lines, *(f"native: {text}" for text in self.native)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
