"""The commands, put together. Each is in a file of its own."""

import typer

from durable_shuffle.jobs.cli.bench import bench_app
from durable_shuffle.jobs.cli.cat import cat
from durable_shuffle.jobs.cli.compact import compact
from durable_shuffle.jobs.cli.gc import gc
from durable_shuffle.jobs.cli.inspect import inspect
from durable_shuffle.jobs.cli.ls import ls
from durable_shuffle.jobs.cli.pipeline import pipeline_app
from durable_shuffle.jobs.cli.pipeline_status import status
from durable_shuffle.jobs.cli.release import release
from durable_shuffle.jobs.cli.report import report
from durable_shuffle.jobs.cli.runs import demo_app
from durable_shuffle.jobs.cli.storage_check import storage_check
from durable_shuffle.jobs.cli.verify import verify

app = typer.Typer(
    name="durable-shuffle",
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
app.add_typer(demo_app, name="demo")
app.add_typer(bench_app, name="bench")
