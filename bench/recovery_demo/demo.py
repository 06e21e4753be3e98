"""The demo: TPC-H on a real cluster, killed on purpose, once with durable shuffles, once without.

Exit status 0 only if every row equals DuckDB's, no committed map task ran again, and each fault
fired in the middle of its phase; 1 names the checks that failed, 2 says why there are no figures.
The kills are real SIGKILLs of separate processes on this host.
"""

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from durable_shuffle.bench.cluster.local_cluster import QUICK_JVMS
from durable_shuffle.bench.recovery_demo.figures import collect_figures
from durable_shuffle.bench.recovery_demo.runner import RecoveryRunner
from durable_shuffle.bench.recovery_demo.steps import plan_steps
from durable_shuffle.bench.recovery_demo.table import CAPTION, figures_table, progress_bars
from durable_shuffle.bench.recovery_demo.verdict import exit_status, failures
from durable_shuffle.bench.tpch.data import default_cache, generate
from durable_shuffle.bench.tpch.oracle import Oracle
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

QUICK_SCALE, FULL_SCALE = 0.02, 0.2
DEMO_COSTS = {"python": 120}
"""Producers that hash some tenths of a second each: slow enough to be killed among."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What a user may choose."""

    full: bool = False
    """Kill executors as well, at a larger scale."""
    scale: float | None = None
    """TPC-H's; None for the one of `full`."""
    json_file: Path | None = None
    data: Path | None = None
    """Folder that keeps generated tables; default below the user's cache folder."""
    work: Path | None = None
    """Empty or new folder for logs and stages, kept; default a temporary one, deleted."""


def run_demo(options: DemoOptions, console: Console, clock: Clock | None = None) -> int:
    """Run the demo, print its table, and return the exit status."""
    return run_recovery(
        DEMO_COSTS, options, console, clock or SystemClock(), java_options=QUICK_JVMS
    )


def run_recovery(
    costs: Mapping[str, int],
    options: DemoOptions,
    console: Console,
    clock: Clock,
    *,
    java_options: str = "",
) -> int:
    """Run every fault for every kind of producer, print, and return the exit status.

    Args:
        costs: label -> MiB that each producer hashes.
        java_options: for the JVMs of the cluster.

    Raises:
        InvalidInputError: a bad scale, or a part of the extra "demo" is not installed.
        UnavailableError: the cluster could not be started or ended by itself.
    """
    start = clock.monotonic()
    scale = options.scale
    if scale is None:
        scale = FULL_SCALE if options.full else QUICK_SCALE
    with ExitStack() as stack:
        work = options.work
        if work is None:
            temporary = tempfile.TemporaryDirectory(
                prefix="durable-shuffle-demo-", ignore_cleanup_errors=True
            )
            work = Path(stack.enter_context(temporary))
        work.mkdir(parents=True, exist_ok=True)
        work = work.resolve()
        cache = (options.data or default_cache()).resolve()
        console.print(f"TPC-H scale {scale:g} in {cache}, work in {work}")
        data = generate(cache, scale)
        oracle = Oracle(data)
        with progress_bars(console) as listener:
            runner = RecoveryRunner(
                *(work, data, listener, clock, java_options), executors=options.full
            )
            outcomes = runner.run(plan_steps(costs, executors=options.full))
        figures = collect_figures(work, outcomes, oracle)
    seconds = clock.monotonic() - start
    title = f"TPC-H scale {scale:g}, ORDERS with LINEITEM, {seconds:.0f} s in all"
    console.print(figures_table(figures, title))
    console.print(CAPTION, style="dim", highlight=False)
    again = sum(f.map_tasks_again for f in figures if f.shuffle == "durable")
    console.print(f"durable map tasks run again: {again}")
    failed = failures(figures)
    for line in failed:
        console.print(f"FAILED  {line}", style="red", markup=False)
    if not failed:
        console.print("all rows equal DuckDB's; every fault fired")
    if options.json_file is not None:
        document = {
            "scale": scale,
            "seconds": seconds,
            "passed": not failed,
            "failures": failed,
            "figures": [f.to_dict() for f in figures],
        }
        options.json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return exit_status(figures)
