"""`durable-shuffle pipeline status`: how a pipeline is, once or live, from its storage alone."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import AsJson, Debug, StorageOption, StorageOptionsEnv, Url
from durable_shuffle.jobs.text import fields, table, when
from durable_shuffle.recovery.job.phases import ENDS
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.coordinator.reporter import ALIVE_SECONDS
from durable_shuffle.recovery.pipeline.status import PartView, StatusView
from durable_shuffle.shuffle.base.clock import SystemClock

_SHOWN = 5
_LEAST_SECONDS = 0.2


def status(
    url: Url,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")],
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=_LEAST_SECONDS, help="With --watch.")
    ] = 1.0,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Show phases, epochs, how far everybody is, how far behind, and restarts with their causes.

    With --watch and --json, one document per line.

    \b
    Examples:
      durable-shuffle pipeline status ./data orders --watch
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        client = PipelineClient(name, storage=call.storage)
        if not watch:
            found = client.status()
            call.emit(asdict(found), status_text(found))
            return
        try:
            _watch(client.status, every, as_json=as_json)
        except KeyboardInterrupt:
            return


def _watch(read: Callable[[], StatusView], every: float, *, as_json: bool) -> None:
    from rich.live import Live  # only where something is shown live
    from rich.text import Text

    clock = SystemClock()
    if as_json:
        while True:
            typer.echo(json.dumps(asdict(read())))
            clock.sleep(every)
    with Live(Text(status_text(read())), auto_refresh=False) as live:
        while True:
            clock.sleep(every)
            live.update(Text(status_text(read())), refresh=True)


def _age(found: StatusView) -> str:
    text = f"{found.age_seconds:.0f} s ago"
    over = found.phase in {str(phase) for phase in ENDS}
    if not over and found.age_seconds > 3 * ALIVE_SECONDS:
        text += ": its coordinator may be gone"
    return text


def status_text(found: StatusView) -> str:
    """Return a status for people."""
    head = fields(
        [
            ("pipeline", found.name),
            ("phase", found.phase),
            ("generation", found.generation),
            ("version", found.version),
            ("last word", _age(found)),
        ]
    )
    columns = ["PART", "TASKS", "EPOCH", "RECORDS", "DURABLE", "LAG", "LAG SECONDS"]
    text = f"{head}\n\n{table(columns, [_row(part) for part in found.parts])}"
    if found.dropped:
        text += f"\n\ndropped: {', '.join(found.dropped)}"
    if found.restarts:
        rows = [
            [when(one.wall_seconds), one.task, one.epoch, one.cause]
            for one in found.restarts[-_SHOWN:]
        ]
        text += f"\n\n{table(['RESTARTED', 'TASK', 'EPOCH', 'CAUSE'], rows)}"
    return text


def _row(part: PartView) -> list[object]:
    phases = Counter(task.phase for task in part.tasks)
    epochs = sorted({task.epoch for task in part.tasks})
    span = f"{epochs[0]}-{epochs[-1]}" if len(epochs) > 1 else epochs[0]
    return [
        part.part,
        ", ".join(f"{count} {phase}" for phase, count in phases.items()),
        span,
        part.records,
        part.durable,
        part.lag_records,
        None if part.lag_seconds is None else f"{part.lag_seconds:.1f}",
    ]
