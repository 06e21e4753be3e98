"""What log producers have stored, read without the library's codecs."""

from collections.abc import Callable

from small_log import read_log_rows
from small_stage import records_below

from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.log_producer import LogProducer

PARTITIONS = 3

Open = Callable[..., LogProducer]


def kinds(stage: StageHandle, producer: int = 0) -> list[str]:
    prefix = stage.path.producer_log_prefix(producer)
    return [kind for _, kind, _ in records_below(stage.storage, prefix)]


def numbers(stage: StageHandle, subpartition: int) -> list[int]:
    """The rows that a new follower is given."""
    return [n for _, _, n in read_log_rows(stage, subpartition)[0] if isinstance(n, int)]


def segments(stage: StageHandle) -> list[str]:
    return sorted(info.key for info in stage.storage.list(stage.path.segments_prefix))
