"""Arguments and options that several commands share."""

from typing import Annotated

import typer

Url = Annotated[str, typer.Argument(metavar="URL", help="Folder or URL, e.g. s3://bucket/shuffle.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]
OptionalJob = Annotated[str | None, typer.Argument(metavar="JOB", help="Default: all jobs.")]
OneJob = Annotated[
    str | None, typer.Argument(metavar="JOB", help="Name of the job; may also end the URL.")
]
_STAGE = "Name, the start of <name>-<fingerprint>, or the whole folder name."
Stage = Annotated[str, typer.Argument(metavar="STAGE", help=_STAGE)]
OptionalStage = Annotated[
    str | None, typer.Argument(metavar="STAGE", help=f"{_STAGE} Default: all stages.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="For the fsspec driver; may be repeated. VALUE is read as JSON where it is JSON.",
    ),
]
StorageOptionsEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment variable that holds the options as a JSON object: keeps secrets out of "
        "the list of processes.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]
