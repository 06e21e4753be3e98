"""`durable-shuffle demo`: the ready-made runs.

All but `demo consume` and `demo enrich` need Spark, which no other command does; they are imported
when they are called. With `--json -` what they print goes to standard error, and the figures they
write become the document on standard output.
"""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import MISUSE, Call, Debug

Scale = Annotated[
    float | None,
    typer.Option(
        help="TPC-H scale factor; 1 is about 1 GB of text. Default: 0.02, with --full 0.2."
    ),
]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the figures to this file; '-' is standard output."
    ),
]
STDOUT = Path("-")
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep generated tables here; default: the user's cache."),
]
Work = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep logs and stages here; default: deleted at the end."),
]


app = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def demo(
    context: typer.Context,
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Kill executors as well, at scale 0.2: some minutes.")
    ] = False,
    scale: Scale = None,
    json_file: JsonFile = None,
    data: Data = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Watch a job survive a killed driver, with --full an executor, and compare every row.

    Runs TPC-H data through Spark on this machine, with --full on a real cluster, once with durable
    shuffles and once with Spark's own. Ends with 1 if a row differs or committed work ran again.
    `demo consume` shows the same for a consumer process, `demo enrich` for a stream, without Spark.
    The defaults take about 70 seconds on 2 cores, 4 GiB of memory and 1 GiB of disk.

    \b
    Examples:
      durable-shuffle demo
      durable-shuffle demo --full                      (about 3 minutes)
      durable-shuffle demo consume --kills 5
      durable-shuffle demo --scale 1 --json demo.json
    """
    if context.invoked_subcommand is None:
        _run(json_file, data, work, full=full, scale=scale, debug=debug)


@app.command("consume")
def demo_consume(
    *,
    kills: Annotated[int, typer.Option(min=0, help="How often the consumer is killed.")] = 5,
    rows: Annotated[int, typer.Option(min=1, help="Rows in the partition that is read.")] = 100_000,
    seed: Annotated[
        int | None, typer.Option(help="Of the moments of the kills; default: a new one, printed.")
    ] = None,
    json_file: JsonFile = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Watch a consumer process be killed at random and lose nothing, double nothing.

    A process reads one partition of a stored stage and publishes what it makes of it. It is killed
    at seeded random rows and started again each time. Ends with 1 unless all kills fired, no row
    is lost or doubled in what was published, and no producer ran again. Takes about 20 seconds and
    little memory or disk; `--kills 1 --rows 1000` is the smallest worth watching.

    \b
    Examples:
      durable-shuffle demo consume
      durable-shuffle demo consume --kills 50 --rows 1000000 --seed 7 --json consume.json
    """
    with (
        Call("", as_json=json_file == STDOUT, debug=debug) as call,
        figures_file(json_file) as file,
    ):
        from rich.console import Console

        from durable_shuffle.bench.consumer_demo.demo import ConsumeDemoOptions, run_consume_demo

        drawn = secrets.randbits(32) if seed is None else seed
        options = ConsumeDemoOptions(rows, kills, drawn, file, work)
        code = run_consume_demo(options, Console(stderr=call.as_json))
        end(code, file if call.as_json else None)


@app.command("enrich")
def demo_enrich(
    *,
    kills: Annotated[
        int, typer.Option(min=0, help="How often a task process, or an executor, is killed.")
    ] = 4,
    on_spark: Annotated[
        bool, typer.Option("--spark", help="Run the tasks on the executors of a Spark cluster.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Of who is killed; default: a new one, printed.")
    ] = None,
    json_file: JsonFile = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Watch a stream be killed, suspended, resumed and drained, with every event in its files once.

    Endless events are looked up asynchronously and written to Parquet files by a pipeline of
    processes. Ends with 1 unless all kills fired, both runs ended as they were told to, and every
    event is published exactly once. With --spark they are Spark tasks on a cluster on this
    machine, whose executors are killed while the stream is updated, suspended, resumed and
    drained by `durable-shuffle pipeline` in other processes. Takes about half a minute and little
    memory or disk, with --spark about 2 minutes and 4 GiB of memory; `--kills 1` is the smallest.

    \b
    Examples:
      durable-shuffle demo enrich
      durable-shuffle demo enrich --spark
      durable-shuffle demo enrich --kills 20 --seed 7 --json enrich.json
    """
    with (
        Call("", as_json=json_file == STDOUT, debug=debug) as call,
        figures_file(json_file) as file,
    ):
        from rich.console import Console

        from durable_shuffle.bench.enrich_demo.demo import EnrichDemoOptions, run_enrich_demo

        drawn = secrets.randbits(32) if seed is None else seed
        options = EnrichDemoOptions(kills, drawn, file, work)
        console = Console(stderr=call.as_json)
        if on_spark:
            from durable_shuffle.bench.enrich_demo.on_spark import run_enrich_on_spark

            code = run_enrich_on_spark(options, console)
        else:
            code = run_enrich_demo(options, console)
        end(code, file if call.as_json else None)


@app.command("hop")
def demo_hop(
    *,
    kills: Annotated[int, typer.Option(min=0, help="How often one of the two drivers dies.")] = 5,
    seed: Annotated[
        int | None, typer.Option(help="Of the kills; default: a new one, printed.")
    ] = None,
    json_file: JsonFile = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Watch two streaming queries be killed apart from each other, with every row once in the end.

    One query counts into a durable stage, the other gathers windows from it into files. Each runs
    in a Spark driver of its own; drivers are killed at seeded random moments and started again.
    Ends with 1 unless all kills fired and every number is in the files exactly once. The defaults
    take a few minutes on 2 cores and 3 GiB of memory.

    \b
    Examples:
      durable-shuffle demo hop --kills 1               (the smallest)
      durable-shuffle demo hop
      durable-shuffle demo hop --kills 20 --seed 7 --json hop.json
    """
    with (
        Call("", as_json=json_file == STDOUT, debug=debug) as call,
        figures_file(json_file) as file,
    ):
        try:
            import duckdb  # noqa: F401 - judges in the end
            from rich.console import Console

            from durable_shuffle.bench.hop_demo.demo import HopOptions, run_hop
        except ModuleNotFoundError as error:
            call.note(f"error: {error.name} is missing: pip install 'durable-shuffle[demo]'")
            raise typer.Exit(MISUSE) from None
        drawn = secrets.randbits(32) if seed is None else seed
        options = HopOptions(kills, drawn, file, work)
        end(run_hop(options, Console(stderr=call.as_json)), file if call.as_json else None)


def _run(
    json_file: Path | None,
    data: Path | None,
    work: Path | None,
    *,
    full: bool,
    scale: float | None,
    debug: bool,
) -> None:
    with (
        Call("", as_json=json_file == STDOUT, debug=debug) as call,
        figures_file(json_file) as file,
    ):
        try:
            from rich.console import Console

            from durable_shuffle.bench.recovery_demo.demo import DemoOptions, run_demo
        except ModuleNotFoundError as error:
            call.note(f"error: {error.name} is missing: pip install 'durable-shuffle[demo]'")
            raise typer.Exit(MISUSE) from None
        code = run_demo(DemoOptions(full, scale, file, data, work), Console(stderr=call.as_json))
        end(code, file if call.as_json else None)


@contextmanager
def figures_file(json_file: Path | None) -> Iterator[Path | None]:
    """Yield the file for the figures: a temporary one if they go to standard output."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "figures.json" if json_file == STDOUT else json_file


def end(code: int, shown: Path | None) -> None:
    """Show the figures, if asked for, and hand the exit status on."""
    if shown is not None:
        typer.echo(shown.read_text(encoding="utf-8").rstrip())
    if code:
        raise typer.Exit(code)
