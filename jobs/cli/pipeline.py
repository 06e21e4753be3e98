"""`durable-shuffle pipeline`: run a pipeline, and operate one that runs, from any terminal."""

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.client import Answer, PipelineClient
from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.plan.updates import arguments_of, pipeline_of
from durable_shuffle.serialization.errors import InvalidInputError

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
Version = Annotated[str, typer.Option("--as", metavar="VERSION", help="What people call this.")]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for the answer.")
]

pipeline_app = typer.Typer(
    help="Run pipelines, and operate them from another terminal.",
    no_args_is_help=True,
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
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a pipeline in this terminal until it ends; Ctrl-C or SIGTERM suspends it.

    It stays when it is suspended from another terminal, so that it can be resumed from there.

    \b
    Examples:
      durable-shuffle pipeline run shop.pipelines:orders --url ./data
    """
    with Call(as_json=as_json, debug=debug) as call:
        sys.path.insert(0, str(Path.cwd()))
        given = arguments_of(arguments) | ({} if url is None else {"url": url})
        text = json.dumps(given, sort_keys=True) if given else ""
        made, _ = pipeline_of(Description(reference, text, version))
        signal.signal(signal.SIGTERM, _suspend)
        call.note(f"pipeline {made.name}: Ctrl-C suspends it")
        result = made.run(serve=True, given=Description(reference, text, version or made.version))
        cause = "" if result.cause is None else f": {result.cause}"
        document = {
            "phase": str(result.phase),
            "cause": None if result.cause is None else str(result.cause),
            "task": result.cause_task,
            "restarts": result.restarts,
        }
        call.emit(document, f"{result.phase}{cause}")
        if result.phase not in (JobPhase.FINISHED, JobPhase.SUSPENDED):
            call.fail()


@pipeline_app.command()
def restart(
    url: Url,
    name: Name,
    part: Part,
    *,
    wait: Wait = 60.0,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Start all tasks of a source or consumer anew, where they are.

    \b
    Examples:
      durable-shuffle pipeline restart ./data orders totals
    """
    _ask(
        Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug),
        name,
        wait,
        lambda client: client.restart(part),
    )


@pipeline_app.command()
def drop(
    url: Url,
    name: Name,
    part: Part,
    *,
    wait: Wait = 60.0,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """End a source or consumer for good.

    \b
    Examples:
      durable-shuffle pipeline drop ./data orders totals
    """
    _ask(
        Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug),
        name,
        wait,
        lambda client: client.drop(part),
    )


@pipeline_app.command()
def update(
    url: Url,
    name: Name,
    reference: Reference,
    *,
    arguments: Arguments = "",
    version: Version = "",
    wait: Wait = 60.0,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Have a running pipeline go on as another description says.

    The function is imported where the pipeline runs. Sources and consumers that are the same are
    not touched; others end where they are and go on from there; one that does not fit what is
    stored is refused, and nothing changes.

    \b
    Examples:
      durable-shuffle pipeline update ./data orders shop.pipelines:orders --as v2
    """
    _ask(
        Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug),
        name,
        wait,
        lambda client: client.update(reference, arguments_of(arguments), version),
    )


@pipeline_app.command("allow-release")
def allow_release(
    url: Url,
    name: Name,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Name of a source or stream.")],
    *,
    upto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRODUCER:SLOT", help="Only below this slot of its log; may be repeated."
        ),
    ] = None,
    wait: Wait = 60.0,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Let data go that all consumers of a stage have committed, and never more than that.

    A consumer that comes later begins at what is left, and then nothing more is released.

    \b
    Examples:
      durable-shuffle pipeline allow-release ./data orders orders
    """
    _ask(
        Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug),
        name,
        wait,
        lambda client: client.allow_release(stage, dict(map(_upto, upto or ()))),
    )


@pipeline_app.command()
def configure(
    url: Url,
    name: Name,
    settings: Annotated[list[str], typer.Argument(metavar="SETTING=VALUE...")],
    *,
    wait: Wait = 60.0,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Have all tasks use other settings: commit_seconds, append_rows and the like.

    \b
    Examples:
      durable-shuffle pipeline configure ./data orders commit_seconds=5
    """
    _ask(
        Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug),
        name,
        wait,
        lambda client: client.configure(**dict(map(_setting, settings))),
    )


def _plain(verb: str, text: str, ask: Callable[[PipelineClient], Answer]) -> None:
    """Add a command that names nothing but the pipeline."""

    def command(
        url: Url,
        name: Name,
        *,
        wait: Wait = 60.0,
        as_json: AsJson = False,
        storage_option: StorageOption = None,
        storage_options_env: StorageOptionsEnv = None,
        debug: Debug = False,
    ) -> None:
        call = Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug)
        _ask(call, name, wait, ask)

    example = f"\b\nExamples:\n  durable-shuffle pipeline {verb} ./data orders"
    pipeline_app.command(verb, help=f"{text}\n\n{example}")(command)


def _ask(call: Call, name: str, wait: float, ask: Callable[[PipelineClient], Answer]) -> None:
    with call:
        client = PipelineClient(name, storage=call.storage, wait_seconds=wait)
        answer = ask(client)
        call.emit(asdict(answer), answer.text or "done")


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
    """Have SIGTERM do what Ctrl-C does, once: who sends it may send it to a whole group."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


_plain(
    "drain",
    "Take nothing new in, process and publish everything, end for good.",
    PipelineClient.drain,
)
_plain("suspend", "Stop everybody where he is; the coordinator stays.", PipelineClient.suspend)
_plain("resume", "Go on after a suspend.", PipelineClient.resume)
_plain("cancel", "Stop at once; what is committed stays.", PipelineClient.cancel)
