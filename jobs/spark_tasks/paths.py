"""Local paths of a pipeline, as they are in the driver: a task runs in another folder."""

from dataclasses import replace
from pathlib import Path

from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import FolderSource
from durable_shuffle.shuffle.storage.open import check_path


def with_absolute_paths(plan: PipelinePlan) -> PipelinePlan:
    """Return the plan with the local paths that it names as they are in this process. Pure but for
    the current folder."""
    stages = {
        name: replace(s, elsewhere=replace(s.elsewhere, url=_absolute(s.elsewhere.url)))
        if s.elsewhere is not None and s.elsewhere.url
        else s
        for name, s in plan.stages.items()
    }
    sources = {
        name: replace(s, source=replace(s.source, folder=_absolute(s.source.folder)))
        if isinstance(s.source, FolderSource)
        else s
        for name, s in plan.sources.items()
    }
    consumers = {
        name: replace(c, sink=replace(c.sink, url=_absolute(c.sink.url)))
        if isinstance(c.sink, FileSink)
        else c
        for name, c in plan.consumers.items()
    }
    return replace(
        plan, url=_absolute(plan.url), stages=stages, sources=sources, consumers=consumers
    )


def _absolute(url: str) -> str:
    if "://" in url:
        return url
    check_path(url)
    return str(Path(url.removeprefix("file:")).absolute())
