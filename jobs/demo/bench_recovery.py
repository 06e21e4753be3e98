"""What a kill costs, with cheap and with expensive producers, durable and Spark's own shuffle.

    python -m durable_shuffle.jobs.demo.bench_recovery --quick [--scale 0.2] [--json FILE]

The same code, checks and exit status as the demo, over {cheap, expensive producers} x {no fault,
executor killed in the reduce, driver killed in the map and started again}. One run per cell: the
figures show sizes, not differences of a few per cent.
"""

import argparse
from collections.abc import Sequence

from rich.console import Console

from durable_shuffle.jobs.tpch_recovery import (
    DEFAULT_SCALE,
    DemoOptions,
    add_options,
    options_of,
    or_error,
    run_recovery,
)
from durable_shuffle.shuffle.clock import Clock, SystemClock

BENCH_COSTS = {"cheap": 0, "expensive": 2000}
"""Cheap producers only scan; expensive ones hash for a second or more each."""

FULL_SCALE = 1.0


def run_bench(options: DemoOptions, console: Console, clock: Clock | None = None) -> int:
    """Run the matrix once, print its table, and return the exit status."""
    return run_recovery(BENCH_COSTS, options, console, clock or SystemClock())


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="durable-shuffle bench recovery", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"scale {DEFAULT_SCALE} and not {FULL_SCALE}"
    )
    add_options(parser, scale=None)
    parsed = parser.parse_args(arguments)
    if parsed.scale is None:
        parsed.scale = DEFAULT_SCALE if parsed.quick else FULL_SCALE
    return or_error(lambda console: run_bench(options_of(parsed), console))


if __name__ == "__main__":
    raise SystemExit(main())
