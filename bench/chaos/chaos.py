"""The 22 queries of TPC-H while executors and drivers are killed, durable and Spark's own shuffle.

    python -m durable_shuffle.bench.chaos.chaos [--scale 0.05] [--seed 0] [--json FILE]

Four passes: calm and with kills, for both kinds of shuffle, the kills by one seeded schedule. Exit
status 0 only if every row equals DuckDB's, no committed producer ran again, and each fault fired.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from durable_shuffle.bench.chaos.driver import answer_file
from durable_shuffle.bench.chaos.plan import (
    DRIVER_KILLS,
    ChaosOutcome,
    ChaosPlan,
    Shuffle,
    chaos_failures,
    lost_per_kill,
)
from durable_shuffle.bench.chaos.runner import ChaosRun
from durable_shuffle.bench.cluster.event_log import map_tasks_by_group
from durable_shuffle.bench.cluster.storage_counts import reruns
from durable_shuffle.bench.cluster.store import running_store, store_of
from durable_shuffle.bench.tpch.answers import Answers
from durable_shuffle.bench.tpch.data import default_cache, generate_all
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

DEFAULT_SCALE = 0.05
EVERY_SECONDS = 6.0
"""With all executors at work: the clock stands still until a killed one is replaced."""


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What a user may choose."""

    scale: float = DEFAULT_SCALE
    seed: int = 0
    storage: str = "folder"
    """Where the durable passes store, one of STORAGES."""
    every_seconds: float | None = EVERY_SECONDS
    """None: each query loses one executor."""
    driver_kills: int = DRIVER_KILLS
    queries: tuple[str, ...] = tuple(TPCH_QUERIES)
    shuffles: tuple[Shuffle, ...] = ("durable", "spark")
    calm: bool = True
    """Run calm passes too, to say what a kill costs."""
    json_file: Path | None = None
    data: Path | None = None
    work: Path | None = None


def run_chaos(options: ChaosOptions, console: Console, clock: Clock | None = None) -> int:
    """Run the passes, print the table, and return the exit status."""
    clock = clock or SystemClock()
    with ExitStack() as stack:
        work = options.work
        if work is None:
            temporary = tempfile.TemporaryDirectory(
                prefix="durable-shuffle-chaos-", ignore_cleanup_errors=True
            )
            work = Path(stack.enter_context(temporary))
        work.mkdir(parents=True, exist_ok=True)
        work = work.resolve()
        data = generate_all((options.data or default_cache()).resolve(), options.scale)
        store = stack.enter_context(running_store(options.storage, work))
        console.print(
            f"TPC-H scale {options.scale:g}, seed {options.seed}, on {store.told}, work in {work}"
        )
        answers = Answers(data)
        plan = ChaosPlan(options.seed, options.queries, options.every_seconds, options.driver_kills)
        outcomes = []
        for shuffle in options.shuffles:
            tasks: dict[str, int] = {}
            for kills in (False, True) if options.calm else (True,):
                run = ChaosRun(
                    work,
                    data.folder,
                    plan,
                    shuffle,
                    kills=kills,
                    tasks=tasks,
                    tell=lambda line: console.print(line, highlight=False, markup=False),
                    clock=clock,
                )
                run.run()
                tasks = run.tasks
                outcomes.append(_outcome(work, run, plan, shuffle, answers, kills=kills))
        failed = chaos_failures(outcomes, len(plan.queries))
    _print(console, outcomes, len(plan.queries), failed)
    if options.json_file is not None:
        document = {
            "scale": options.scale,
            "seed": options.seed,
            "storage": store.told,
            "passed": not failed,
            "failures": failed,
            "outcomes": [o.to_dict() for o in outcomes],
            "lost_per_kill": _lost(outcomes),
        }
        options.json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _outcome(
    work: Path, run: ChaosRun, plan: ChaosPlan, shuffle: Shuffle, answers: Answers, *, kills: bool
) -> ChaosOutcome:
    wrong = []
    for query in plan.queries:
        table = pq.read_table(answer_file(work, run.job, query))
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        if not answers.of(query) or answers.differing(query, rows):
            wrong.append(query)
    total = Counter[str]()
    for one in run.totals:
        total.update({key: int(value) for key, value in one.items() if key != "seconds"})
    again = 0
    if shuffle == "durable":
        again = max(reruns(store_of(work).open(), run.job), total["map_tasks_rerun"])
    return ChaosOutcome(
        shuffle=shuffle,
        kills_wanted=kills,
        right=len(plan.queries) - len(wrong),
        wrong=tuple(wrong),
        executor_kills=run.executor_kills,
        executor_kills_wanted=(len(plan.executor_dies_at()) or 1) if kills else 0,
        driver_kills=run.driver_kills,
        driver_kills_wanted=len(plan.driver_dies_at()) if kills else 0,
        map_tasks_run=total["map_tasks_run"],
        map_tasks_reused=total["map_tasks_reused"],
        map_tasks_rerun=again,
        map_tasks=_map_tasks(work, run.job),
        seconds=run.seconds,
    )


def _map_tasks(work: Path, job: str) -> int:
    counts: Counter[str] = Counter()
    for path in sorted((work / "event-logs").iterdir()):
        if path.is_file() and not path.name.startswith("."):  # .crc files of a local folder
            with path.open(encoding="utf-8") as lines:
                counts += map_tasks_by_group(lines)
    return sum(n for group, n in counts.items() if group.startswith(f"{job}/"))


def _lost(outcomes: Sequence[ChaosOutcome]) -> dict[str, float]:
    by_kind = {(o.shuffle, o.kills_wanted): o for o in outcomes}
    kinds = {o.shuffle for o in outcomes if (o.shuffle, False) in by_kind}
    return {s: lost_per_kill(by_kind[s, False], by_kind[s, True]) for s in sorted(kinds)}


def _print(
    console: Console, outcomes: Sequence[ChaosOutcome], queries: int, failed: list[str]
) -> None:
    table = Table(box=None, pad_edge=False)
    # not wider than 80 characters: a console that is a file cuts it there
    for name in ("shuffle", "right", "executors", "drivers", "again", "sec", "lost"):
        table.add_column(name, justify="left" if name == "shuffle" else "right", no_wrap=True)
    lost = _lost(outcomes)
    for o in outcomes:
        again = str(o.map_tasks_rerun) if o.shuffle == "durable" else "-"
        cost = f"{lost[o.shuffle]:+.1f} s/kill" if o.kills_wanted and o.shuffle in lost else ""
        kills = (str(o.executor_kills), str(o.driver_kills))
        title = o.title.replace(" shuffle", "")
        table.add_row(title, f"{o.right}/{queries}", *kills, again, f"{o.seconds:.1f}", cost)
    console.print(table)
    console.print("executors, drivers: killed; again: committed producers that ran once more")
    total_again = sum(o.map_tasks_rerun for o in outcomes)
    durable = [o for o in outcomes if o.shuffle == "durable" and o.kills_wanted]
    for o in durable:
        console.print(f"{o.right}/{queries} right, {total_again} committed producers run again")
    for line in failed:
        console.print(f"FAILED  {line}", style="red", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="durable-shuffle bench chaos")
    parser.add_argument("--scale", type=float, default=DEFAULT_SCALE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=EVERY_SECONDS)
    parser.add_argument("--queries", default=",".join(TPCH_QUERIES))
    for name in ("--json", "--data", "--work"):
        parser.add_argument(name, type=Path)
    parsed = parser.parse_args(arguments)
    options = ChaosOptions(
        scale=parsed.scale,
        seed=parsed.seed,
        every_seconds=parsed.every,
        queries=tuple(parsed.queries.split(",")),
        json_file=parsed.json,
        data=parsed.data,
        work=parsed.work,
    )
    return run_chaos(options, Console())


if __name__ == "__main__":
    raise SystemExit(main())
