"""`durable-shuffle demo` and `bench`: the ready-made runs, the only commands that need Spark.

They are imported when they are called. With `--json -` what they print goes to standard error, and
the figures they write become the document on standard output.
"""

import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import MISUSE, Call
from durable_shuffle.jobs.cli.params import Debug

Scale = Annotated[float, typer.Option(help="TPC-H scale factor; 1 is about 1 GB of text.")]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the figures to this file; '-' is standard output."
    ),
]
_STDOUT = Path("-")
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep generated tables here; default: the user's cache."),
]
Work = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep logs and stages here; default: deleted at the end."),
]


class Benchmark(StrEnum):
    """What can be measured."""

    RECOVERY = "recovery"


def demo(
    *,
    scale: Scale = 0.2,
    json_file: JsonFile = None,
    data: Data = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Watch a job survive a killed executor and a killed driver, and compare every row.

    Runs TPC-H data through a real cluster on this machine, once with durable shuffles and once
    with Spark's own. Ends with 1 if a row differs or committed work ran again.

    \b
    Examples:
      durable-shuffle demo
      durable-shuffle demo --scale 1 --json demo.json
    """
    _run("demo", scale, json_file, data, work, debug=debug)


def bench(
    _benchmark: Annotated[Benchmark, typer.Argument(metavar="[recovery]")] = Benchmark.RECOVERY,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Scale 0.2 instead of 1.")] = False,
    scale: Annotated[float | None, typer.Option(help="TPC-H scale factor.")] = None,
    json_file: JsonFile = None,
    data: Data = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Measure what a kill costs, with durable shuffles and with Spark's own.

    \b
    Examples:
      durable-shuffle bench recovery --quick
      durable-shuffle bench recovery --scale 2 --json bench.json
    """
    scale = (0.2 if quick else 1.0) if scale is None else scale
    _run("bench", scale, json_file, data, work, debug=debug)


def _run(
    what: str,
    scale: float,
    json_file: Path | None,
    data: Path | None,
    work: Path | None,
    *,
    debug: bool,
) -> None:
    as_json = json_file == _STDOUT
    with Call(as_json=as_json, debug=debug) as call, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json" if as_json else json_file
        try:
            run = _load(what)
        except ModuleNotFoundError as error:
            call.note(f"error: {error.name} is missing: pip install 'durable-shuffle[demo]'")
            raise typer.Exit(MISUSE) from None
        code = run(scale, file, data, work, to_stderr=as_json)
        if as_json and file is not None:
            typer.echo(file.read_text(encoding="utf-8").rstrip())
        if code:
            raise typer.Exit(code)


def _load(what: str) -> Callable[..., int]:
    """Import the run; raises ModuleNotFoundError if a part of the extra "demo" is missing."""
    from rich.console import Console

    from durable_shuffle.jobs.bench_recovery import run_bench
    from durable_shuffle.jobs.tpch_recovery import DemoOptions, run_demo

    def run(
        scale: float, file: Path | None, data: Path | None, work: Path | None, *, to_stderr: bool
    ) -> int:
        options = DemoOptions(scale, file, data, work)
        return (run_demo if what == "demo" else run_bench)(options, Console(stderr=to_stderr))

    return run
