"""Lets the consumed part of a pipeline's stage go, as an operator allowed; never more than that."""

from collections.abc import Mapping

from durable_shuffle.recovery.command.external import AllowRelease
from durable_shuffle.recovery.pipeline.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.stages import stage_of
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.clock import IdSource
from durable_shuffle.shuffle.consumer_log import read_resume_set
from durable_shuffle.shuffle.layout import StagePath, consumers_prefix
from durable_shuffle.shuffle.registry import register_consumers
from durable_shuffle.shuffle.release_upto import release_upto
from durable_shuffle.shuffle.slot_log import SlotLog
from durable_shuffle.shuffle.stage import StageHandle
from durable_shuffle.shuffle.storage import Storage
from durable_shuffle.shuffle.verify_consumers import listed_consumers


def allow_release(
    plan: PipelinePlan,
    paths: Mapping[str, StagePath],
    storage: Storage,
    command: AllowRelease,
    *,
    generation: int,
    ids: IdSource,
) -> str:
    """Register who reads the stage, then release what all of them have committed.

    The set of its consumers is closed by that: with a new one, nothing more is released.

    Raises:
        InvalidInputError: not a stage that this pipeline writes, or a producer that it has not.
    """
    known = plan.stages.get(command.stage)
    if known is None or known.elsewhere is not None:
        raise InvalidInputError(
            f"pipeline {plan.name!r} writes no stage {command.stage!r}; it writes "
            f"{', '.join(n for n, s in plan.stages.items() if s.elsewhere is None)}"
        )
    asked = {_producer(text, known.producers): upto for text, upto in command.upto.items()}
    stage = stage_of(plan, paths, storage, command.stage)
    ours = {name for name, consumer in plan.consumers.items() if consumer.reads == command.stage}
    register_consumers(stage, ours | _others(stage), ids=ids, generation=generation)
    freed = release_upto(stage, asked or None, ids=ids, generation=generation)
    return f"{freed.objects} segments, {freed.data_bytes} bytes"


def _producer(text: str, producers: int) -> int:
    if not text.isdecimal() or int(text) >= producers:
        raise InvalidInputError(f"no such producer: found={text!r} producers={producers}")
    return int(text)


def _others(stage: StageHandle) -> set[str]:
    """Return consumers of other pipelines that have begun to read the stage."""
    keys = (info.key for info in stage.storage.list(consumers_prefix(stage.path.job)))
    found: set[str] = set()
    for path in listed_consumers(keys):
        state = read_resume_set(SlotLog(stage.storage, path.log_prefix))
        if any(folder == stage.path.folder for folder, _ in state.inputs):
            found.add(path.consumer)
    return found
