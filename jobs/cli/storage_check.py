"""`durable-shuffle storage-check`: may this storage be used?"""

from dataclasses import asdict
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import AsJson, Debug, StorageOption, StorageOptionsEnv, Url
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.check import StorageReport, check_storage


def storage_check(
    url: Url,
    *,
    processes: Annotated[int, typer.Option(help="How many race for each key, from 2.")] = 8,
    rounds: Annotated[int, typer.Option(help="Keys to race for, from 1.")] = 50,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Try the storage contract on a live backend and say what it may be used for.

    Writes below storage-check-<random id>/ and deletes those objects again. Ends with 1 if a law
    is broken. Takes about 10 seconds on a local folder, some minutes on a slow object store, and
    next to no space.

    \b
    Examples:
      durable-shuffle storage-check ./shuffle-data --processes 2 --rounds 5
      durable-shuffle storage-check /mnt/nfs/shuffle
      durable-shuffle storage-check s3://bucket/shuffle --storage-option anon=false
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        report = check_storage(call.storage, ids=RandomIds(), processes=processes, rounds=rounds)
        document = asdict(report) | {"passed": report.passed, "verdict": report.verdict}
        call.emit(document, _text(report))
        if not report.passed:
            call.fail()


def _text(report: StorageReport) -> str:
    lines = [f"{'ok  ' if law.passed else 'FAIL'} {law.law}: {law.reason}" for law in report.laws]
    times = [("put", report.put_ms), ("create", report.create_ms), ("get", report.get_ms)]
    shown = ", ".join(f"{name} {ms:.1f} ms" for name, ms in times if ms is not None)
    if shown:
        lines.append(f"medians for 1 kB: {shown}")
    if report.leftovers:
        lines.append(f"left behind: {report.leftovers}")
    return "\n".join([*lines, report.verdict])
