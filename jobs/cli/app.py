"""The commands, put together. Each is in a file of its own.

The ready-made runs (`demo`, `bench`) are no part of the product, which imports nothing of them:
they are found by name when one of them is called.
"""

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from durable_shuffle.jobs.cli.cat import cat
from durable_shuffle.jobs.cli.compact import compact
from durable_shuffle.jobs.cli.gc import gc
from durable_shuffle.jobs.cli.inspect import inspect
from durable_shuffle.jobs.cli.ls import ls
from durable_shuffle.jobs.cli.pipeline import pipeline_app
from durable_shuffle.jobs.cli.pipeline_status import status
from durable_shuffle.jobs.cli.release import release
from durable_shuffle.jobs.cli.report import report
from durable_shuffle.jobs.cli.storage_check import storage_check
from durable_shuffle.jobs.cli.verify import verify


class ReadyMade(NamedTuple):
    """A group of commands that is imported when it is called."""

    module: str
    """Its Typer application is the module's `app`."""
    summary: str
    """What the list of commands says: the first sentence of its own help."""


READY_MADE = {
    "demo": ReadyMade(
        "durable_shuffle.bench.commands.demo",
        "Watch a job survive a killed executor and a killed driver, and compare every row.",
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
    """All commands; in the place of those that are ready-made stand their names and summaries."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, ready_made(name) if name in READY_MADE else command, rest


app = typer.Typer(
    name="durable-shuffle",
    cls=_Commands,
    help="Look at, verify, release and clean up durable shuffle data; run pipelines.",
    epilog="Exit codes: 0 fine, 1 a finding or failure, 2 misuse.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, credentials among them
    rich_markup_mode=None,
)
for _command in (ls, inspect, verify, cat, release, gc, compact, storage_check, report):
    app.command()(_command)
pipeline_app.command()(status)
app.add_typer(pipeline_app, name="pipeline")
for _name, _found in READY_MADE.items():
    app.add_typer(typer.Typer(), name=_name, help=_found.summary)
