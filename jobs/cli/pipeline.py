"""`durable-shuffle pipeline`: run a pipeline, and operate one that runs, from any terminal."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

import typer

from durable_shuffle.jobs.cli.call import FENCED, AsJson, Call, Debug, command, placed_between
from durable_shuffle.jobs.text import fields, table, when
from durable_shuffle.recovery.job.phases import ENDS, JobPhase
from durable_shuffle.recovery.pipeline.client import Answer, PipelineClient
from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.coordinator.reporter import ALIVE_SECONDS
from durable_shuffle.recovery.pipeline.plan.updates import arguments_of, pipeline_of
from durable_shuffle.recovery.pipeline.status import PartView, StatusView
from durable_shuffle.serialization.errors import ErrorKind, InvalidInputError
from durable_shuffle.shuffle.base.clock import SystemClock

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]
Part = Annotated[str, typer.Argument(metavar="PART", help="A source or consumer.")]
Reference = Annotated[
    str,
    typer.Argument(metavar="MODULE:FUNCTION", help="Returns the pipeline; no file name, no .py."),
]
Arguments = Annotated[
    str,
    typer.Option(
        metavar="JSON", help="Keyword arguments of the function, a JSON object. Stored: no secrets."
    ),
]
Version = Annotated[
    str, typer.Option("--as", metavar="VERSION", help="A name for this version, shown by `status`.")
]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for the answer.")
]

_SHOWN = 5
_SHORTEST_SECONDS = 0.2

pipeline_app = typer.Typer(
    help="Run pipelines, and operate them from another terminal.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@pipeline_app.command()
def run(
    reference: Reference,
    *,
    url: Annotated[
        str | None, typer.Option(help="Given to the function as its argument `url`.")
    ] = None,
    arguments: Arguments = "",
    version: Version = "",
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another instance runs it; then go on.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a pipeline in this terminal until it ends; Ctrl-C or SIGTERM suspends it.

    If it is suspended from another terminal, it keeps running here, so that it can be resumed. If
    it is started somewhere else as well, the newer one takes over, and this one ends with exit code
    3: do not start it again. With --standby, the newer one waits until this one has ended or gives
    no sign of life.

    \b
    Examples:
      durable-shuffle pipeline run shop.pipelines:orders --url ./data
    """
    with Call("", as_json=as_json, debug=debug) as call:
        sys.path.insert(0, str(Path.cwd()))
        given = arguments_of(arguments) | ({} if url is None else {"url": url})
        text = json.dumps(given, sort_keys=True) if given else ""
        made, _ = pipeline_of(Description(reference, text, version))
        signal.signal(signal.SIGTERM, _suspend)
        call.note(f"pipeline {made.name}: Ctrl-C suspends it")
        described = Description(reference, text, version or made.version)
        result = made.run(serve=True, standby=standby, given=described)
        cause = "" if result.cause is None else f": {result.cause}"
        document = {
            "phase": str(result.phase),
            "cause": None if result.cause is None else str(result.cause),
            "task": result.cause_task,
            "restarts": result.restarts,
        }
        call.emit(document, f"{result.phase}{cause}")
        failed = result.phase is JobPhase.FAILED and result.cause is not None
        if failed and result.cause.kind == ErrorKind.FENCED:
            call.fail(FENCED)
        if result.phase not in (JobPhase.FINISHED, JobPhase.SUSPENDED):
            call.fail()


def _request(example: str = "") -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Add a command that sends a request to a pipeline and shows the answer.

    The function takes a `PipelineClient` and what users type behind URL and NAME, as in `example`.
    """

    def add(ask: Callable[..., Answer]) -> Callable[..., None]:
        def send(call: Call, name: Name, *, wait: Wait = 60.0, **given: Any) -> None:
            client = PipelineClient(name, storage=call.storage, wait_seconds=wait)
            answer = ask(client, **given)
            call.emit(asdict(answer), answer.text or "done")

        verb = ask.__name__.replace("_", "-")
        typed = f"durable-shuffle pipeline {verb} ./data orders {example}".rstrip()
        whole = command(placed_between(send, ask))
        return pipeline_app.command(verb, help=f"{getdoc(ask)}\n\n\b\nExamples:\n  {typed}")(whole)

    return add


@_request("totals")
def restart(client: PipelineClient, part: Part) -> Answer:
    """Restart all tasks of a source or consumer from where they are."""
    return client.restart(part)


@_request("totals")
def drop(client: PipelineClient, part: Part) -> Answer:
    """End a source or consumer for good."""
    return client.drop(part)


@_request("shop.pipelines:orders --as v2")
def update(
    client: PipelineClient,
    reference: Reference,
    *,
    arguments: Arguments = "",
    version: Version = "",
) -> Answer:
    """Change a running pipeline to another description.

    The function is imported where the pipeline runs. Sources and consumers that stay the same are
    not touched. Others stop, and continue from where they are as the new description says. A
    description that does not fit what is stored is refused, and nothing changes.
    """
    return client.update(reference, arguments_of(arguments), version)


@_request("orders")
def allow_release(
    client: PipelineClient,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Name of a source or stream.")],
    *,
    upto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRODUCER:SLOT", help="Only below this slot of its log; may be repeated."
        ),
    ] = None,
) -> Answer:
    """Allow the pipeline to delete data that all consumers of a stage have committed.

    The pipeline does this by itself from time to time. A consumer that is added later begins at the
    oldest data left.
    """
    return client.allow_release(stage, dict(map(_upto, upto or ())))


@_request("commit_seconds=5")
def configure(
    client: PipelineClient,
    settings: Annotated[list[str], typer.Argument(metavar="SETTING=VALUE...")],
) -> Answer:
    """Change settings of all tasks, such as commit_seconds or append_rows."""
    return client.configure(**dict(map(_setting, settings)))


@_request()
def drain(client: PipelineClient) -> Answer:
    """Read nothing new, process and publish everything, then end for good."""
    return client.drain()


@_request()
def suspend(client: PipelineClient) -> Answer:
    """Stop all tasks where they are; the coordinator keeps running."""
    return client.suspend()


@_request()
def resume(client: PipelineClient) -> Answer:
    """Continue after a suspend."""
    return client.resume()


@_request()
def cancel(client: PipelineClient) -> Answer:
    """Stop at once; what is committed stays."""
    return client.cancel()


@pipeline_app.command()
@command
def status(
    call: Call,
    name: Name,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=_SHORTEST_SECONDS, help="With --watch.")
    ] = 1.0,
) -> None:
    """Show phases, epochs, progress, lag, and restarts with their causes.

    With --watch and --json, one document per line.

    \b
    Examples:
      durable-shuffle pipeline status ./data orders --watch
    """
    client = PipelineClient(name, storage=call.storage)
    if not watch:
        view = client.status()
        call.emit(asdict(view), status_text(view))
        return
    try:
        _watch(client.status, every, as_json=call.as_json)
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


def _age(view: StatusView) -> str:
    text = f"{view.age_seconds:.0f} s ago"
    over = view.phase in {str(phase) for phase in ENDS}
    if not over and view.age_seconds > 3 * ALIVE_SECONDS:
        text += ": its coordinator may be gone"
    return text


def status_text(view: StatusView) -> str:
    """Return a status for people."""
    head = fields(
        [
            ("pipeline", view.name),
            ("phase", view.phase),
            ("generation", view.generation),
            ("version", view.version),
            ("last word", _age(view)),
        ]
    )
    columns = ["PART", "TASKS", "EPOCH", "RECORDS", "DURABLE", "LAG", "LAG SECONDS"]
    text = f"{head}\n\n{table(columns, [_row(part) for part in view.parts])}"
    if view.dropped:
        text += f"\n\ndropped: {', '.join(view.dropped)}"
    if view.restarts:
        rows = [[when(r.wall_seconds), r.task, r.epoch, r.cause] for r in view.restarts[-_SHOWN:]]
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


def _upto(text: str) -> tuple[int, int]:
    producer, _, slot = text.partition(":")
    if not (producer.isdecimal() and slot.isdecimal()):
        raise InvalidInputError(f"--upto takes PRODUCER:SLOT, found={text!r}")
    return int(producer), int(slot)


def _setting(text: str) -> tuple[str, float]:
    key, separator, value = text.partition("=")
    try:
        number = json.loads(value)
    except ValueError:
        number = None
    if not separator or not isinstance(number, int | float) or isinstance(number, bool):
        raise InvalidInputError(f"a setting is NAME=NUMBER, found={text!r}")
    return key, number


def _suspend(number: int, _: object) -> None:
    """Make SIGTERM do what Ctrl-C does, once: it may be sent to a whole process group."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
