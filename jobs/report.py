"""What a `DurableShuffle` did, per stage, per consumer and in sum, as values that print well."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class StageReport:
    """One wrapped stage."""

    name: str
    fingerprint: str
    incarnation: str
    decision: str
    """"reuse", "resume" or "fresh"."""
    why: str
    partitioner: str
    """How rows found their partition, as in the stage's description."""
    producers: int
    producers_run: int
    """Producers whose task wrote in this session."""
    producers_reused: int
    """Producers whose COMMIT stood before."""
    producers_rerun: int
    """Attempts that wrote a segment although a COMMIT existed, counted from storage."""
    native_exchanges: int
    """Spark's own shuffles below this stage."""
    rows: int
    data_bytes: int
    """Bytes on storage, as encoded."""
    objects: int
    """Segments that count, plus commits and index."""
    requests: int
    """Storage requests of the map tasks and the driver."""
    storage_retries: int
    """Storage requests beyond these, made because an earlier one failed."""
    storage_wait_seconds: float
    """Time that map tasks, each on its own, and the driver spent waiting before those."""
    retries: int
    """Map tasks that Spark started although they had been started before."""
    seconds: float


@dataclass(frozen=True, slots=True)
class ConsumerReport:
    """One call of `consume`. What a killed attempt did shows in `views` alone."""

    consumer: str
    stage: str
    """The stage's folder below the job."""
    resume: str
    tasks: int
    """Subpartitions of the stage."""
    tasks_run: int
    tasks_reused: int
    """Tasks that had finished before."""
    views: int
    """How often a subpartition was opened, over all attempts: `tasks_run` if nothing failed."""
    records: int
    """Acknowledged by now, in all."""
    records_acknowledged: int
    """By this call, over all attempts."""
    records_delivered: int
    """To the attempts that finished; those before them got what they acknowledged and more."""
    records_dropped: int
    """Approximate mode: delivered and never acknowledged, by now."""
    acknowledgements: int
    """Records that this call won in the consumers' logs after OPEN."""
    resumed_from: dict[int, int]
    """Subpartition -> records that were acknowledged when the attempt that finished it began;
    only those that did not begin at 0."""
    outputs: int
    """Objects published by now."""
    output_rows: int
    output_bytes: int
    """On storage, as encoded."""
    requests: int
    """Storage requests of the driver and of the attempts that finished."""
    retries: int
    """Tasks that Spark started although they had been started before."""
    seconds: float


_SUMMED = (
    "producers", "producers_run", "producers_reused", "producers_rerun", "native_exchanges",
    "rows", "data_bytes", "objects", "requests", "storage_retries", "storage_wait_seconds",
    "retries", "seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """All stages and consumers of one session, in the order in which they were asked for."""

    job: str
    generation: int
    stages: tuple[StageReport, ...]
    consumers: tuple[ConsumerReport, ...] = ()
    native: tuple[str, ...] = ()
    """What stayed Spark's own in whole queries, each with the reason."""

    def total(self) -> dict[str, float]:
        """Return the sum over all stages of every count."""
        return {name: sum(getattr(s, name) for s in self.stages) for name in _SUMMED}

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {
            "job": self.job,
            "generation": self.generation,
            "stages": [asdict(s) for s in self.stages],
            "consumers": [asdict(c) for c in self.consumers],
            "total": self.total(),
            "native": list(self.native),
        }

    def __str__(self) -> str:
        parts = [f"job {self.job}, generation {self.generation}"]
        parts += _table(StageReport, self.stages, ("incarnation", "why"))
        if self.consumers:
            parts += _table(ConsumerReport, self.consumers, ("stage", "resumed_from"))
        parts += [f"native: {text}" for text in self.native]
        return "\n".join(parts)


def _table(kind: type[Any], values: Sequence[object], hidden: Sequence[str]) -> list[str]:
    shown = [f.name for f in fields(kind) if f.name not in hidden]
    rows = [shown] + [[_text(getattr(v, n)) for n in shown] for v in values]
    widths = [max(len(r[i]) for r in rows) for i in range(len(shown))]
    return ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]


def _text(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
