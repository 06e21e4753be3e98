"""All commands. The ready-made runs (`demo`, `bench`) are imported by name when one is called."""

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from durable_shuffle.jobs.cli.cat import cat
from durable_shuffle.jobs.cli.changing import compact, gc, release
from durable_shuffle.jobs.cli.looking import inspect, ls, report, storage_check
from durable_shuffle.jobs.cli.pipeline import pipeline_app
from durable_shuffle.jobs.cli.run import run
from durable_shuffle.jobs.cli.vacuum import vacuum
from durable_shuffle.jobs.cli.verify import verify


class ReadyMade(NamedTuple):
    """A group of commands that is imported when it is called: the `app` of `module`."""

    module: str
    summary: str
    """The first sentence of its own help."""


READY_MADE = {
    "demo": ReadyMade(
        "durable_shuffle.bench.commands.demo",
        "Watch a job survive a killed driver, with --full an executor, and compare every row.",
    ),
    "bench": ReadyMade(
        "durable_shuffle.bench.commands.bench",
        "Measure what failures, hand-overs and storage cost, beside others on this machine.",
    ),
}


def ready_made(name: str) -> Any:
    """Return the commands of one of `READY_MADE`, imported now."""
    try:
        return get_command(importlib.import_module(READY_MADE[name].module).app)
    except ModuleNotFoundError as error:
        typer.echo(
            f"error: {error.name} is missing: pip install 'durable-shuffle[{name}]'", err=True
        )
        raise typer.Exit(2) from None


class _Commands(TyperGroup):
    """All commands; imports the ready-made ones when they are called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, ready_made(name) if name in READY_MADE else command, rest


app = typer.Typer(
    name="durable-shuffle",
    cls=_Commands,
    help="Look at, verify, release and clean up durable shuffle data; run programs and pipelines.",
    epilog="Exit codes: 0 fine, 1 a finding or failure, 2 misuse; `run --help` says its own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, credentials among them
    rich_markup_mode=None,
)
for _command in (ls, inspect, verify, cat, release, vacuum, gc, compact, storage_check, report):
    app.command()(_command)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.add_typer(pipeline_app, name="pipeline")
for _name, _group in READY_MADE.items():
    app.add_typer(typer.Typer(), name=_name, help=_group.summary)
