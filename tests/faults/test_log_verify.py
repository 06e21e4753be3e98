"""Verify of a stage of log producers: sound, or damaged in one byte of what its APPENDs name."""

import pytest
from small_log import SCHEMA, numbered_rows
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify.report import StageVerdict
from durable_shuffle.shuffle.verify.stage import check_stage
from durable_shuffle.shuffle.write.log_producer import LogProducer

PARTITIONS, ROWS = 3, 12


@pytest.fixture
def stage(ids: SeededIds) -> StageHandle:
    """A stage with rows, markers, a suspension and a successor."""
    stage = new_stage(MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, writing="log")
    for start in range(0, ROWS, 6):
        producer = LogProducer.open(stage, 0, record_id=ids.new_id(), generation=1, settings=SMALL)
        for at in (start, start + 3):
            rows = numbered_rows(at, at + 3, PARTITIONS)
            producer.append(rows, b"", markers=[Checkpoint(at)])
        producer.end("SUSPEND")
    return stage


def verified(stage: StageHandle) -> StageVerdict:
    return check_stage(stage.storage, stage.path, Settings(), released=False)


def test_sound_log_stage_verifies(stage: StageHandle) -> None:
    """All rows are counted, markers are read, nothing is found."""
    verdict = verified(stage)
    assert verdict.findings == ()
    assert verdict.rows == ROWS


@pytest.mark.parametrize("place", ["record", "row", "marker", "missing"])
def test_damage_to_a_log_stage_is_found(stage: StageHandle, place: str) -> None:
    """One finding at least, and it names the object."""
    infos = stage.storage.list(stage.path.segments_prefix)
    key = min(info.key for info in infos) if place != "record" else stage.producer_log(0).key(1)
    data = bytearray(stage.storage.read(key))
    stage.storage.delete([key])
    if place != "missing":
        at = {"record": 40, "row": 100, "marker": len(data) - 20}[place]
        data[at] ^= 1
        stage.storage.put(key, [bytes(data)])
    assert key in {finding.key for finding in verified(stage).findings}
