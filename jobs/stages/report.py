"""What a `DurableShuffle` did, per stage, per consumer and in total, as values that print well."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import fill

from durable_shuffle.jobs.stages.identity import MOVED
from durable_shuffle.jobs.text import assigned, html_lines, html_table, size, table
from durable_shuffle.shuffle.base.words import StageAction

_SUMMED = (
    "map_tasks", "map_tasks_run", "map_tasks_reused", "map_tasks_rerun", "native_exchanges",
    "rows", "data_bytes", "objects", "requests", "storage_retries", "storage_wait_seconds",
    "retries", "seconds",
)  # fmt: skip
_ACTIONS = (
    StageAction.REUSED, StageAction.RESUMED, StageAction.COMPUTED, StageAction.REPAIRED,
)  # fmt: skip
MET_DAMAGE = "a reader met damage"
"""Begins what is said of a stage that was checked because of it."""
_COLUMNS = 100
_LEAST_NAME, _LEAST_KEYS = 12, 14
_KEPT = 7
"""The last characters of a name are never cut: "-" and 6 of a stage's fingerprint."""
_CONSUMER_COLUMNS = {0: (_LEAST_NAME, _KEPT)}
_STAGE_COLUMNS = {2: (_LEAST_KEYS, 0), **_CONSUMER_COLUMNS}
"""Columns of the tables that are shortened; see `_narrow`."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """One wrapped stage."""

    name: str
    fingerprint: str
    incarnation: str
    action: StageAction
    why: str
    partitioner: str
    """How rows are assigned to partitions: "hash", "round_robin", …"""
    keys: tuple[str, ...]
    """Names of the columns that decide it; none where expressions do."""
    columns: tuple[str, ...]
    """Names of the columns of its rows."""
    map_tasks: int
    map_tasks_run: int
    """Those that wrote in this session."""
    map_tasks_reused: int
    """Those that had committed before."""
    map_tasks_rerun: int
    """Attempts that wrote a segment although their map task had committed, counted on storage."""
    native_exchanges: int
    """Spark's own shuffles below this stage."""
    rows: int
    data_bytes: int
    """Encoded bytes on storage."""
    objects: int
    """Segments in use, one commit per map task, and the index."""
    requests: int
    """Storage requests of the map tasks and the driver."""
    storage_retries: int
    """Further storage requests, made because an earlier one failed."""
    storage_wait_seconds: float
    """Time that the driver and all map tasks, added up, waited before those retries."""
    retries: int
    """How often Spark started a map task again."""
    seconds: float


@dataclass(frozen=True, slots=True)
class ConsumerReport:
    """One call of `consume`. A killed attempt counts only in `views`."""

    consumer: str
    stage: str
    """The stage's folder below the job."""
    resume: str
    tasks: int
    """Partitions of the stage."""
    tasks_run: int
    tasks_reused: int
    """Tasks that had finished before this call."""
    views: int
    """How often a partition was opened, over all attempts: `tasks_run` if nothing failed."""
    records: int
    """Rows acknowledged so far, by this call and earlier ones."""
    records_acknowledged: int
    """Rows that this call acknowledged, over all its attempts."""
    records_delivered: int
    """Rows delivered to the attempts that finished. Attempts that failed are not counted."""
    records_dropped: int
    """Approximate mode: rows delivered but never acknowledged, so far."""
    acknowledgements: int
    """Records that this call wrote to the consumers' logs, not counting OPEN."""
    resumed_from: dict[int, int]
    """Partition -> rows already acknowledged when the attempt that finished it began; partitions
    that began at row 0 are left out."""
    outputs: int
    """Objects published so far."""
    output_rows: int
    output_bytes: int
    """Encoded bytes on storage."""
    requests: int
    """Storage requests of the driver and of the attempts that finished."""
    retries: int
    """How often Spark started a task again."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """All stages and consumers of one `DurableShuffle`, in the order of the calls."""

    job: str
    generation: int
    stages: tuple[StageReport, ...]
    consumers: tuple[ConsumerReport, ...] = ()
    native: tuple[str, ...] = ()
    """Exchanges that Spark ran itself in `query` calls, each with the reason."""
    adapted: tuple[str, ...] = ()
    """What `query` calls planned again because of the true sizes of stages."""

    def total(self) -> dict[str, float]:
        """Return the counters for monitoring: how many stages, and each count summed over them.

        Numbers only, and they only grow while the object lives. Consumers are not included.
        """
        actions = Counter(s.action for s in self.stages)
        kinds = {f"stages_{action}": actions[action] for action in _ACTIONS}
        sums = {name: sum(getattr(s, name) for s in self.stages) for name in _SUMMED}
        return {"stages": len(self.stages), **kinds, **sums}

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain values, for JSON."""
        return {
            "job": self.job,
            "generation": self.generation,
            "stages": [asdict(s) for s in self.stages],
            "consumers": [asdict(c) for c in self.consumers],
            "total": self.total(),
            "native": list(self.native),
            "adapted": list(self.adapted),
        }

    def __str__(self) -> str:
        """Return the main counts as tables of about 100 characters; `to_dict` has all counts."""
        stages = _narrow(*_stage_table(self.stages), shortens=_STAGE_COLUMNS)
        parts = [self._title(), stages, *self._of_stages()]
        if self.consumers:
            parts.append(_narrow(*_consumer_table(self.consumers), shortens=_CONSUMER_COLUMNS))
        return "\n".join([*parts, *self._of_queries()])

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        parts = [html_lines([self._title()]), html_table(*_stage_table(self.stages))]
        parts.append(html_lines(self._of_stages()))
        if self.consumers:
            parts.append(html_table(*_consumer_table(self.consumers)))
        return "".join([*parts, html_lines(self._of_queries())])

    def _title(self) -> str:
        return f"job {self.job}, driver no. {self.generation}"

    def _of_stages(self) -> list[str]:
        """Return what is said only of some stages."""
        lines = [f"{_title(s)}: {more}" for s in self.stages if (more := _more(s))]
        lines += [
            f"{_title(s)}: {s.why}"
            for s in self.stages
            if _matters_later(s) or MET_DAMAGE in s.why or s.action is StageAction.REPAIRED
        ]
        return [_wrapped(line) for line in lines]

    def _of_queries(self) -> list[str]:
        return [_wrapped(t) for t in (*self.adapted, *(f"native: {text}" for text in self.native))]


Table = tuple[tuple[str, ...], list[tuple[object, ...]]]
"""Head and rows."""


def _stage_table(stages: Sequence[StageReport]) -> Table:
    head = ("stage", "action", "partitioner", "map tasks", "run", "reused", "again", "rows")
    rows: list[tuple[object, ...]] = [
        (
            *(_title(s), s.action, assigned(s.partitioner, s.keys, s.columns)),
            *(s.map_tasks, s.map_tasks_run, s.map_tasks_reused, s.map_tasks_rerun),
            *(f"{s.rows:,}", size(s.data_bytes), f"{s.seconds:.1f}"),
        )
        for s in stages
    ]
    return (*head, "size", "s"), rows


def _consumer_table(consumers: Sequence[ConsumerReport]) -> Table:
    head = ("consumer", "resume", "tasks", "run", "views", "records", "dropped", "out", "size", "s")
    rows: list[tuple[object, ...]] = [
        (
            *(c.consumer, c.resume, c.tasks, c.tasks_run, c.views),
            *(f"{c.records:,}", f"{c.records_dropped:,}"),
            *(f"{c.output_rows:,}", size(c.output_bytes), f"{c.seconds:.1f}"),
        )
        for c in consumers
    ]
    return head, rows


def _more(stage: StageReport) -> str:
    """Return the counts that are shown only if they are not 0."""
    waited = f" (waited {stage.storage_wait_seconds:.2f} s)" if stage.storage_retries else ""
    counts = (
        (stage.native_exchanges, "native exchanges below"),
        (stage.retries, "tasks started again by Spark"),
        (stage.storage_retries, f"storage requests sent again{waited}"),
    )
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def _matters_later(stage: StageReport) -> bool:
    """Whether a later run will compute the stage again, unless its user does something."""
    return MOVED in stage.why or (stage.action is StageAction.COMPUTED and "version=" in stage.why)


def _narrow(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    shortens: Mapping[int, tuple[int, int]],
) -> str:
    """Return a table; shorten columns if it would be too wide.

    Args:
        shortens: number of a column -> the least width of its cells, and how many of their last
            characters are never cut; in the order in which they are shortened.
    """
    cells = [[*map(str, row)] for row in rows]
    for column, (least, kept) in shortens.items():
        spare = _COLUMNS - max(map(len, table(head, cells).split("\n")))
        widest = max(len(row[column]) for row in (head, *cells))
        room = max(least, widest + min(0, spare))
        for row in cells:
            row[column] = _cut(row[column], room, kept)
    return table(head, cells)


def _cut(text: str, room: int, kept: int) -> str:
    return text if len(text) <= room else f"{text[: room - kept - 1]}…{text[len(text) - kept :]}"


def tell(stage: StageReport, log: logging.Logger) -> None:
    """Log a stage in one line."""
    log.info(
        "stage %s-%s, %s: %s (%s); map tasks run %d, reused %d; %d rows, %d bytes, %.1f s",
        *(stage.name, stage.fingerprint[:6]),
        assigned(stage.partitioner, stage.keys, stage.columns),
        *(stage.action, stage.why),
        *(stage.map_tasks_run, stage.map_tasks_reused),
        *(stage.rows, stage.data_bytes, stage.seconds),
    )


def _title(stage: StageReport) -> str:
    return f"{stage.name}-{stage.fingerprint[:6]}"


def _wrapped(text: str) -> str:
    return fill(text, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
