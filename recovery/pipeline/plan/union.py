"""Merge streams of a pipeline: all their writers write one stage, each as producers of its own."""

from collections.abc import Sequence
from dataclasses import replace

from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.serialization.errors import InvalidInputError


def merge(plan: PipelinePlan, streams: Sequence[str], name: str) -> PipelinePlan:
    """Return the plan in which one stage takes the place of several.

    Args:
        streams: names of stages of the plan.
        name: of the new stage.

    Raises:
        InvalidInputError: fewer than two streams; one is read, or is of another job; or columns,
            key or partitions differ.
    """
    if len(set(streams)) < 2 or len(set(streams)) < len(streams):
        raise InvalidInputError(f"union {name!r} needs more than one stream, each once")
    stages = [plan.stages[stream] for stream in streams]
    first = stages[0]
    for stage in stages:
        reader = next((c.name for c in plan.consumers.values() if c.reads == stage.name), None)
        if reader is not None:
            raise InvalidInputError(
                f"stream {stage.name!r} is read by consumer {reader!r}: it cannot be part of union "
                f"{name!r}"
            )
        if stage.elsewhere is not None:
            raise InvalidInputError(
                f"stream {stage.name!r} is of another job: pass its rows on with through()"
            )
        shape = stage.schema, stage.keys, stage.partitions
        if shape != (first.schema, first.keys, first.partitions):
            raise InvalidInputError(
                f"streams {first.name!r} and {stage.name!r} cannot be merged: a union needs the "
                "same columns, key and partitions"
            )
    sources, consumers, producers = dict(plan.sources), dict(plan.consumers), 0
    for stage in stages:
        for source in plan.sources.values():
            if source.stage == stage.name:
                moved = replace(source, writes=name, first=producers + source.first)
                sources[source.name] = moved
        for consumer in plan.consumers.values():
            if consumer.writes == stage.name:
                passed = replace(consumer, writes=name, first=producers + consumer.first)
                consumers[consumer.name] = passed
        producers += stage.producers
    left = {known: stage for known, stage in plan.stages.items() if known not in streams}
    readers = tuple(dict.fromkeys(reader for stage in stages for reader in stage.readers))
    left[name] = replace(first, name=name, producers=producers, readers=readers)
    return replace(plan, stages=left, sources=sources, consumers=consumers)
