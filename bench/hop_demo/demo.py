"""`durable-shuffle demo hop`: two streaming queries, killed and started again at random moments.

Strategy: both drivers are processes of their own, each the leader of a process session; a kill is
SIGKILL to driver, JVM and Python workers at once. The seed says which of the two dies, after how
many of its batches and how much later. In the end the counting query is stopped, the other reads
what is left, and DuckDB compares every number in the files with what was counted, told from
Spark's own checkpoint.
"""

import json
import queue
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from durable_shuffle.bench.cluster.faults import end_session
from durable_shuffle.bench.hop_demo.queries import BATCHES_PER_WINDOW, ROWS_PER_BATCH
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

QUERIES = ("count", "gather")
_MOST_BATCHES = 3
"""A driver dies after up to so many batches of a life, exclusive."""
_MOST_SECONDS = 1.0
"""And up to so much later."""
_HANG_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class HopOptions:
    """What to run."""

    kills: int
    seed: int
    json_file: Path | None = None
    work: Path | None = None


@dataclass(frozen=True, slots=True)
class Kill:
    """One planned kill."""

    query: str
    batches: int
    """Of the victim's life, after which it dies."""
    seconds: float
    """And this much later."""


@dataclass(frozen=True, slots=True)
class HopFigures:
    """What came out."""

    seed: int
    kills_wanted: int
    kills_fired: int
    kills_of: dict[str, int]
    counted_batches: int
    """Batches that the first query's checkpoint calls done."""
    windows: int
    """Finished windows in the files."""
    expected: int
    """Numbers that these windows must hold."""
    found: int
    lost: int
    doubled: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Every number once, all kills fired, and nothing but the open windows missing."""
        behind = self.counted_batches - self.windows * BATCHES_PER_WINDOW
        return (
            self.kills_fired == self.kills_wanted
            and self.lost == self.doubled == 0
            and self.found == self.expected > 0
            and behind <= 2 * BATCHES_PER_WINDOW
        )


def plan_kills(kills: int, draw: random.Random) -> list[Kill]:
    """Return who dies, in order; with two or more both do. Pure but for `draw`."""
    victims = [QUERIES[n % 2] for n in range(kills)]
    draw.shuffle(victims)
    return [
        Kill(victim, draw.randrange(_MOST_BATCHES), draw.uniform(0, _MOST_SECONDS))
        for victim in victims
    ]


def run_hop(options: HopOptions, console: Console, clock: Clock | None = None) -> int:
    """Run the demo; returns the exit status."""
    clock = clock or SystemClock()
    console.print(f"Two streaming queries, one stage; {options.kills} kills, seed {options.seed}")
    with _folder(options.work) as folder:
        figures = _run(folder, options, console, clock)
    for name, value in asdict(figures).items():
        console.print(f"  {name.replace('_', ' ')}: {value}")
    console.print(
        f"{'passed' if figures.passed else 'FAILED'}: {figures.kills_fired} of "
        f"{figures.kills_wanted} kills fired, {figures.lost} lost, {figures.doubled} doubled"
    )
    if options.json_file is not None:
        text = json.dumps({**asdict(figures), "passed": figures.passed}, indent=2)
        options.json_file.write_text(text + "\n")
    return 0 if figures.passed else 1


def _run(folder: Path, options: HopOptions, console: Console, clock: Clock) -> HopFigures:
    begin = clock.monotonic()
    fired = dict.fromkeys(QUERIES, 0)
    running: dict[str, _Driver] = {}
    try:
        running["count"] = _Driver("count", folder, clock)
        running["count"].wait_batches(1)  # the stage is there
        running["gather"] = _Driver("gather", folder, clock)
        for kill in plan_kills(options.kills, random.Random(options.seed)):
            victim = running[kill.query]
            victim.wait_batches(kill.batches)
            clock.sleep(kill.seconds)
            fired[kill.query] += victim.kill()
            after = f"{kill.seconds:.2f} s after {victim.batches} batches of its life"
            console.print(f"  killed {kill.query}, {after}")
            running[kill.query] = _Driver(kill.query, folder, clock)
        for driver in running.values():
            driver.wait_batches(2)
        for driver in running.values():
            driver.end()
        last = running["last"] = _Driver("gather", folder, clock, "last")
        last.wait_end()
    finally:
        for driver in running.values():
            driver.kill()
    found = judge(folder)
    return HopFigures(
        seed=options.seed,
        kills_wanted=options.kills,
        kills_fired=sum(fired.values()),
        kills_of=fired,
        seconds=round(clock.monotonic() - begin, 1),
        **found,
    )


def judge(folder: Path) -> dict[str, int]:
    """Compare the numbers in the files with those that must be there, by DuckDB.

    Batch n of the counting query holds the numbers [n * ROWS_PER_BATCH, ...) at second n; a window
    is whole if it is there at all. Which batches are done is read from Spark's checkpoint.
    """
    import duckdb

    done = [int(p.name) for p in (folder / "count" / "commits").iterdir() if p.name.isdigit()]
    per_window = ROWS_PER_BATCH * BATCHES_PER_WINDOW
    with duckdb.connect() as db:
        # the file sink's log names the files that count
        names = _committed_files(folder / "files")
        db.execute("CREATE TABLE found (start TIMESTAMP, number BIGINT)")
        if names:
            db.execute(
                "INSERT INTO found SELECT start, unnest(numbers) FROM read_parquet(?)", [names]
            )
        row = db.execute(
            "SELECT count(*), count(DISTINCT start), coalesce(max(epoch(start)), 0) FROM found"
        ).fetchone()
        assert row is not None
        rows, windows, newest = row
        expected = 0 if not rows else (int(newest) // BATCHES_PER_WINDOW + 1) * per_window
        lost = db.execute(
            "SELECT count(*) FROM range(?) wanted(n) WHERE n NOT IN (SELECT number FROM found)",
            [expected],
        ).fetchone()
        assert lost is not None
    return {
        "counted_batches": max(done, default=-1) + 1,
        "windows": int(windows),
        "expected": expected,
        "found": int(rows),
        "lost": int(lost[0]),
        "doubled": int(rows) - (expected - int(lost[0])),
    }


def _committed_files(folder: Path) -> list[str]:
    """Return the files that the file sink's own log calls written."""
    names: dict[str, None] = {}
    for entry in (folder / "_spark_metadata").iterdir():
        if entry.name.startswith("."):
            continue
        for line in entry.read_text().splitlines()[1:]:
            names[json.loads(line)["path"].removeprefix("file://")] = None
    return list(names)


class _Driver:
    """One life of one query's driver."""

    def __init__(self, query: str, folder: Path, clock: Clock, *more: str) -> None:
        self.query, self._clock, self.batches = query, clock, 0
        log = (folder / "drivers.log").open("a")
        module = "durable_shuffle.bench.hop_demo.queries"
        with log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, query, str(folder), *more],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._log = folder / "drivers.log"
        self._lines: queue.Queue[str] = queue.Queue()
        self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_batches(self, batches: int) -> None:
        """Return once this life has done so many batches; 0: once the query has started."""
        while self.batches < batches or not self._started:
            self._take()

    def wait_end(self) -> None:
        """Return once the query has ended by itself."""
        while not self._ended:
            self._take()

    def end(self) -> None:
        """Have the query stopped, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.wait_end()

    def kill(self) -> int:
        """SIGKILL everything of this driver; return 1 if it was alive."""
        alive = self._process.poll() is None
        end_session(self._process.pid, self._clock, patience_seconds=0)
        self._process.wait()
        for stream in (self._process.stdin,):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        return int(alive)

    _started = False

    def _take(self) -> None:
        try:
            line = self._lines.get(timeout=_HANG_SECONDS)
        except queue.Empty:
            line = ""
        if not line:
            raise UnavailableError(
                f"the driver of query {self.query!r} ended or hung by itself:\n"
                f"{self._log.read_text()[-4000:]}"
            )
        self._started = True
        self.batches += line.startswith("batch")
        self._ended = self._ended or line.startswith("ended")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    with tempfile.TemporaryDirectory(prefix="durable-shuffle-hop-") as folder:
        yield Path(folder)
