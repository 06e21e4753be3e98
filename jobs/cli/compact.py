"""`durable-shuffle compact`: rewrite small extents of sealed stages next to each other."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    Job,
    OptionalStage,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.jobs.inspect.names import find_job, find_stage
from durable_shuffle.jobs.text import size
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage, read_state
from durable_shuffle.shuffle.repair.compaction import SMALL_BYTES, compact_stage
from durable_shuffle.shuffle.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class _Compacted:
    stage: str
    outcome: str
    extents: int = 0
    segments: int = 0
    data_bytes: int = 0


def compact(
    url: Url,
    job: Job,
    stage: OptionalStage = None,
    *,
    small_bytes: Annotated[
        int, typer.Option(help="Longest extent that is moved, in bytes.", min=1)
    ] = SMALL_BYTES,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Rewrite small extents of sealed stages next to each other: readers send fewer requests.

    Worth it where many producers write for many partitions on an object store. Changes no row and
    no order, claims nothing, and may run beside drivers and readers. The originals stay until the
    stage is released, so what moves is stored twice.

    \b
    Examples:
      durable-shuffle compact s3://bucket/shuffle nightly
      durable-shuffle compact s3://bucket/shuffle nightly orders --small-bytes 262144
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        copy = find_job(call.storage, job)
        live = [path for path in copy.paths if path not in copy.released]
        paths = live if stage is None else [find_stage(copy, stage, released=False)]
        done = [_compact(call.storage, path, small_bytes) for path in paths]
        document = {"url": call.storage.description, "job": job, "stages": list(map(asdict, done))}
        call.emit(document, "\n".join(map(_line, done)) or "no stages")


def _compact(storage: Storage, path: StagePath, small_bytes: int) -> _Compacted:
    stage = open_stage(storage, path)
    state = read_state(stage)
    if state.seal is None:
        return _Compacted(path.folder, "not sealed")
    found = compact_stage(
        stage,
        ids=RandomIds(),
        generation=state.seal.generation,
        settings=Settings(),
        small_bytes=small_bytes,
    )
    if found.compact is None:
        return _Compacted(path.folder, "nothing to gain")
    return _Compacted(
        path.folder,
        "compacted" if found.won else "compacted before",
        found.compact.extents,
        len(found.compact.segments),
        sum(segment.length for segment in found.compact.segments),
    )


def _line(one: _Compacted) -> str:
    if not one.segments:
        return f"{one.stage}: {one.outcome}"
    return (
        f"{one.stage}: {one.outcome}: {one.extents} extents in {one.segments} segments, "
        f"{size(one.data_bytes)}"
    )
