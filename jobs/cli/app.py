"""The list of all commands. A command's own module is imported when it is called."""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

_HERE = "durable_shuffle.jobs.cli."
_RUNS = "durable_shuffle.bench.commands."


class Listed(NamedTuple):
    """Where a command is, and what the list says of it."""

    module: str
    name: str
    """Of the function, or of the `Typer` with more commands."""
    summary: str
    """The first sentence of its own help."""
    extra: str = ""
    """What to install if a library is missing; "" if nothing can be missing."""
    settings: Mapping[str, bool] = {}


COMMANDS = {
    "ls": Listed(_HERE + "looking", "ls", "List jobs, or the stages of one job."),
    "inspect": Listed(
        _HERE + "looking",
        "inspect",
        "Show a job's stages and consumers, or all that is known of one stage.",
    ),
    "verify": Listed(
        _HERE + "verify", "verify", "Read everything that is committed and check every byte of it."
    ),
    "cat": Listed(
        _HERE + "cat",
        "cat",
        "Write rows of a stored stage, partition by partition, in stored order.",
    ),
    "release": Listed(
        _HERE + "changing",
        "release",
        "Delete stages of a job for good: all of them, one, or those older than an age.",
    ),
    "vacuum": Listed(
        _HERE + "vacuum",
        "vacuum",
        "Delete the stages that a job's runs no longer use; without --delete only show them.",
    ),
    "gc": Listed(
        _HERE + "changing",
        "gc",
        "Remove what no log of a job needs; without --delete only show it.",
    ),
    "compact": Listed(
        _HERE + "changing",
        "compact",
        "Rewrite small extents of stored stages next to each other; saves readers requests.",
    ),
    "storage-check": Listed(
        _HERE + "looking",
        "storage_check",
        "Test the storage contract on a live backend and say what it may be used for.",
    ),
    "report": Listed(
        _HERE + "looking",
        "report",
        "Show when a job's map tasks and consumers stored data, and what was used again.",
    ),
    "run": Listed(
        _HERE + "run",
        "run",
        "Start a program, and restart it after a failure, until it succeeds.",
        settings={"allow_interspersed_args": False},
    ),
    "pipeline": Listed(
        _HERE + "pipeline",
        "pipeline_app",
        "Run pipelines, and operate them from another terminal.",
    ),
    "demo": Listed(
        _RUNS + "demo",
        "app",
        "Watch a job survive a killed driver, with --full an executor, and compare every row.",
        "demo",
    ),
    "bench": Listed(
        _RUNS + "bench",
        "app",
        "Measure what failures, hand-overs and storage cost, beside others on this machine.",
        "bench",
    ),
}
"""In the order of the list."""


def imported(name: str) -> Any:
    """Return one of `COMMANDS`, imported now."""
    listed = COMMANDS[name]
    try:
        found = getattr(importlib.import_module(listed.module), listed.name)
    except ModuleNotFoundError as error:
        if not listed.extra:
            raise
        typer.echo(
            f"error: {error.name} is missing: pip install 'durable-shuffle[{listed.extra}]'",
            err=True,
        )
        raise typer.Exit(2) from None
    if isinstance(found, typer.Typer):
        return get_command(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, context_settings={**listed.settings})(found)
    return get_command(alone)


class _Commands(TyperGroup):
    """All commands, each of which is imported when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, imported(str(name)), rest


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
for _name, _listed in COMMANDS.items():
    app.add_typer(typer.Typer(), name=_name, help=_listed.summary)
