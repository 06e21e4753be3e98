"""A consumer process that is killed at random moments, and what came of it.

Strategy: a stage is stored; a child process (`child.py`) consumes one partition of it. At
each gate the child says how many rows it has processed and waits: the parent lets it through, or,
at the first gate at or behind a drawn number of rows, sends SIGKILL and starts the next one. At the
end the published outputs are compared with the numbers themselves.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from durable_shuffle.bench.consumer_demo.child import CONSUMER, OUTPUTS, SUBPARTITION
from durable_shuffle.bench.consumer_demo.stage import JOB, store_stage
from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.consume.log import read_outputs
from durable_shuffle.shuffle.consume.outputs import read_output
from durable_shuffle.shuffle.log.layout import ConsumerPath, default_task
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.seal.seal import count_reruns
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import LocalStorage

_GATES = 1000
_CHECKPOINTS = 20
"""About so many gates and acknowledgements, whatever the number of rows."""
_MOMENTS = ("processed", "output written", "acknowledged")
_WEIGHTS = (3, 1, 1)


@dataclass(frozen=True, slots=True)
class ConsumeDemoOptions:
    """What to run."""

    rows: int
    kills: int
    seed: int
    json_file: Path | None = None
    work: Path | None = None
    """Where the stage is kept; None: in a temporary folder."""

    def __post_init__(self) -> None:
        if self.kills < 0 or self.rows < max(1, self.kills):
            raise InvalidInputError(
                f"rows must be at least 1 and at least kills, kills at least 0: found "
                f"rows={self.rows} kills={self.kills}"
            )


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """SIGKILL at the first gate of this moment at or behind so many rows, or at the end."""

    records: int
    moment: str

    def is_due(self, moment: str, records: int, rows: int) -> bool:
        """Return whether to kill at this gate."""
        if moment not in _MOMENTS:
            return False
        last = records == rows and moment == "output written"
        return records >= self.records and (moment == self.moment or last)


@dataclass(frozen=True, slots=True)
class Life:
    """One consumer process, from its start to its end."""

    epoch: int
    resumed_from: int
    """Rows that were acknowledged when it opened its view."""
    reached: int
    """Rows that it had processed, with those before it, when it ended."""
    ended: str
    """The moment at which it was killed, or "finished"."""
    killed: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """What is printed and judged."""

    seed: int
    rows: int
    kills_wanted: int
    kills_fired: int
    epochs: int
    delivered: int
    """Rows handed to consumer processes, in sum."""
    delivered_again: int
    published: int
    lost: int
    """Rows that no output holds."""
    doubled: int
    """Rows in the outputs that should not be there, or not again."""
    map_tasks_rerun: int
    lives: tuple[Life, ...]

    @property
    def passed(self) -> bool:
        """True if all kills fired and nothing was lost, doubled or produced again."""
        wrong = self.lost + self.doubled + self.map_tasks_rerun
        return wrong == 0 and self.kills_fired == self.kills_wanted

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {"passed": self.passed, **asdict(self)}


def plan_kills(rows: int, kills: int, source: random.Random) -> list[PlannedKill]:
    """Draw the moments, ascending."""
    drawn = sorted(source.sample(range(1, rows + 1), kills))
    moments = source.choices(_MOMENTS, weights=_WEIGHTS, k=kills)
    return [PlannedKill(*one) for one in zip(drawn, moments, strict=True)]


def run_consume_demo(
    options: ConsumeDemoOptions,
    console: Console,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> int:
    """Run the demo, print its table, and return the exit status: 0 if it passed, else 1."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    console.print(f"seed {options.seed}: {options.kills} kills over {options.rows} rows")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        storage = LocalStorage(folder)
        stage = store_stage(storage, options.rows, ids, clock)
        lives = _lives(folder, stage, options, console)
        figures = judge(storage, stage, options, lives)
    _print(console, figures)
    if options.json_file is not None:
        options.json_file.write_text(json.dumps(figures.to_dict(), indent=2) + "\n")
    return 0 if figures.passed else 1


def judge(
    storage: Storage, stage: StageHandle, options: ConsumeDemoOptions, lives: Sequence[Life]
) -> Figures:
    """Compare the published outputs with what was stored, number by number."""
    task = default_task(stage.path.incarnation, SUBPARTITION)
    log = SlotLog(storage, ConsumerPath(JOB, CONSUMER, task).log_prefix)
    found: Counter[tuple[int, int]] = Counter()
    for output in read_outputs(log):
        for batch in read_output(storage, output, OUTPUTS):
            found.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    expected = Counter((n, n * n) for n in range(options.rows))
    delivered = sum(life.reached - life.resumed_from for life in lives)
    return Figures(
        seed=options.seed,
        rows=options.rows,
        kills_wanted=options.kills,
        kills_fired=sum(life.killed for life in lives),
        epochs=max(life.epoch for life in lives),
        delivered=delivered,
        delivered_again=delivered - options.rows,
        published=found.total(),
        lost=(expected - found).total(),
        doubled=(found - expected).total(),
        map_tasks_rerun=count_reruns(stage, require_seal(stage)).attempts,
        lives=tuple(lives),
    )


def _lives(
    folder: Path, stage: StageHandle, options: ConsumeDemoOptions, console: Console
) -> list[Life]:
    """Start consumers until one finishes."""
    arguments = [
        *(str(folder), JOB, stage.path.folder),
        *(str(max(1, options.rows // _GATES)), str(max(1, options.rows // _CHECKPOINTS))),
    ]
    plan = plan_kills(options.rows, options.kills, random.Random(options.seed))
    lives: list[Life] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("consuming", total=options.rows)
        while not lives or lives[-1].killed:
            epoch = len(lives) + 1
            bar.update(task, description=f"process {epoch}")
            kill = plan[len(lives)] if len(lives) < len(plan) else None
            lives.append(
                _live(arguments, kill, options.rows, lambda n: bar.update(task, completed=n))
            )
    return lives


def _live(
    arguments: Sequence[str],
    kill: PlannedKill | None,
    rows: int,
    progress: Callable[[int], None],
) -> Life:
    """Run one consumer process to its end, or to the kill.

    Raises:
        UnavailableError: it ended by itself before its work was done.
    """
    module = "durable_shuffle.bench.consumer_demo.child"
    child = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    start: dict[str, Any] = {}
    try:
        for line in child.stdout:
            said = json.loads(line)
            moment, records = said["moment"], said["records"]
            progress(records)
            start = start or said
            life = (said["epoch"], start["records"], records, moment)
            if moment == "finished":
                return Life(*life, killed=False)
            if kill is not None and kill.is_due(moment, records, rows):
                child.kill()
                child.wait()
                return Life(*life, killed=child.returncode == -signal.SIGKILL)
            if moment != "opened":
                child.stdin.write("\n")
                child.stdin.flush()
    except BaseException:
        child.kill()
        raise
    finally:
        for stream in (child.stdin, child.stdout):
            with suppress(BrokenPipeError):
                stream.close()
        child.wait()
    raise UnavailableError(f"the consumer ended by itself: status={child.returncode}")


def _print(console: Console, figures: Figures) -> None:
    lives = Table("process", "epoch", "began at row", "ended at row", "how", title="Consumers")
    for number, life in enumerate(figures.lives, 1):
        how = f"SIGKILL, {life.ended}" if life.killed else life.ended
        values = (number, life.epoch, life.resumed_from, life.reached, how)
        lives.add_row(*map(str, values))
    console.print(lives)
    result = Table("", "rows", title="Result")
    for name, value in (
        ("stored in the partition", figures.rows),
        ("delivered to consumers", figures.delivered),
        ("delivered again after a kill", figures.delivered_again),
        ("published", figures.published),
        ("lost", figures.lost),
        ("doubled in the output", figures.doubled),
    ):
        result.add_row(name, str(value))
    console.print(result)
    console.print(
        f"{'passed' if figures.passed else 'FAILED'}: {figures.kills_fired} of "
        f"{figures.kills_wanted} kills fired, {figures.epochs} epochs, {figures.lost} lost, "
        f"{figures.doubled} doubled, {figures.map_tasks_rerun} producers run again"
    )
