"""From what happened to the figures: joins outcomes, Spark's event logs, storage and DuckDB."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from durable_shuffle.bench.cluster.event_log import map_tasks_by_group
from durable_shuffle.bench.cluster.storage_counts import reruns
from durable_shuffle.bench.recovery_demo.driver import result_file, step_group, store_folder
from durable_shuffle.bench.recovery_demo.steps import Outcome
from durable_shuffle.bench.recovery_demo.verdict import Figures
from durable_shuffle.bench.tpch.job import PRODUCERS, REDUCERS
from durable_shuffle.bench.tpch.oracle import Oracle
from durable_shuffle.shuffle.storage.open import open_storage


def collect_figures(work: Path, outcomes: Sequence[Outcome], oracle: Oracle) -> list[Figures]:
    """Return one line per kind of producer, fault and shuffle."""
    spark_tasks = _spark_map_tasks(work)
    by_run = {(o.step.producers, o.step.shuffle, o.step.fault): o for o in outcomes}
    figures = []
    for (producers, shuffle, fault), first in by_run.items():
        if fault == "rerun":
            continue
        last = by_run[producers, shuffle, "rerun"] if fault == "driver" else first
        calm = by_run[producers, shuffle, "none"]
        runs = [first] if last is first else [first, last]
        seconds = sum(_seconds(run) for run in runs)
        figures.append(_figures(work, runs, oracle, spark_tasks, seconds, seconds - _seconds(calm)))
    return figures


def _figures(
    work: Path,
    runs: Sequence[Outcome],
    oracle: Oracle,
    spark_tasks: Mapping[str, int],
    seconds: float,
    lost: float,
) -> Figures:
    first, last = runs[0], runs[-1]
    kill = first.kill
    rows = oracle.compare(result_file(work, last.step.number))
    shuffled = spark_tasks.get(step_group(last.step.number), 0)
    done_before = kill.progress.map_done if kill and last is not first else 0
    if last.total is None:
        run, reused, again = shuffled, 0, max(0, shuffled + done_before - PRODUCERS)
    else:
        run, reused = int(last.total["map_tasks_run"]), int(last.total["map_tasks_reused"])
        counted_later = reruns(open_storage(str(store_folder(work))), last.step.job)
        again = max(int(last.total["map_tasks_rerun"]), counted_later)
    return Figures(
        producers=first.step.producers,
        fault=first.step.fault,
        shuffle=first.step.shuffle,
        rows_expected=rows.expected,
        rows_found=rows.found,
        rows_differing=rows.differing,
        map_tasks=PRODUCERS,
        map_tasks_run=run,
        map_tasks_reused=reused,
        map_tasks_again=again,
        spark_map_tasks=shuffled,
        committed_at_kill=kill.progress.map_done if kill else 0,
        reduced_at_kill=kill.progress.reduce_done if kill else 0,
        reduce_tasks=REDUCERS,
        fault_fired=kill is not None and kill.gone,
        seconds=seconds,
        seconds_lost=lost,
    )


def _seconds(outcome: Outcome) -> float:
    if outcome.seconds is not None:
        return outcome.seconds
    return outcome.kill.seconds_in if outcome.kill else 0.0


def _spark_map_tasks(work: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in sorted((work / "event-logs").iterdir()):
        if path.is_file() and not path.name.startswith("."):  # .crc files of a local folder
            with path.open(encoding="utf-8") as lines:
                counts += map_tasks_by_group(lines)
    return counts
