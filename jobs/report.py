"""What a `DurableShuffle` did, per stage and in sum, as values that print well."""

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class StageReport:
    """One wrapped stage."""

    name: str
    fingerprint: str
    incarnation: str
    decision: str
    """"reuse", "resume" or "fresh"."""
    why: str
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
    retries: int
    """Map tasks that Spark started although they had been started before."""
    seconds: float


_SUMMED = (
    "producers", "producers_run", "producers_reused", "producers_rerun", "native_exchanges",
    "rows", "data_bytes", "objects", "requests", "retries", "seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """All stages of one session, in the order in which they were asked for."""

    job: str
    generation: int
    stages: tuple[StageReport, ...]

    def total(self) -> dict[str, float]:
        """Return the sum over all stages of every count."""
        return {name: sum(getattr(s, name) for s in self.stages) for name in _SUMMED}

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {
            "job": self.job,
            "generation": self.generation,
            "stages": [asdict(s) for s in self.stages],
            "total": self.total(),
        }

    def __str__(self) -> str:
        shown = [f.name for f in fields(StageReport) if f.name not in ("incarnation", "why")]
        rows = [shown] + [[_text(getattr(s, n)) for n in shown] for s in self.stages]
        widths = [max(len(r[i]) for r in rows) for i in range(len(shown))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
        return "\n".join([f"job {self.job}, generation {self.generation}", *lines])


def _text(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
