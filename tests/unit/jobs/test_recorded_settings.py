"""What a description may say of how its stage was planned, before Spark is told."""

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from small_stage import SeededIds, new_stage

from durable_shuffle.jobs.query.groups import target_bytes
from durable_shuffle.jobs.query.ranges import count_of
from durable_shuffle.jobs.stages.recorded import recorded_settings
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.memory import MemoryStorage

FILES, PARTITIONS = "spark.sql.files.", "spark.sql.shuffle.partitions"
HONEST = {
    f"{FILES}maxPartitionBytes": "134217728b",
    f"{FILES}openCostInBytes": "0",
    f"{FILES}minPartitionNum": "8",
    f"{FILES}maxPartitionNum": "2147483647",
    "spark.sql.leafNodeDefaultParallelism": "8",
    PARTITIONS: " 200 ",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.durableShuffle.group.targetBytes": "33554432",
    "spark.durableShuffle.range.bounds": "[]",
}


def planned_with(planning: dict[str, str]) -> StageHandle:
    schema = pa.schema([("n", pa.int64())])
    stage = new_stage(
        MemoryStorage(), SeededIds(random.Random(1)), schema, partitions=1, producers=1
    )
    return replace(stage, describe=replace(stage.describe, planning=planning))


@pytest.mark.parametrize("size", ["1", "64m", "64MB", "1g", " 2Tb ", "1p"])
def test_what_the_library_records_comes_through(size: str) -> None:
    planning = HONEST | {f"{FILES}maxPartitionBytes": size}
    assert recorded_settings(planned_with(planning)) == planning


@pytest.mark.parametrize("key", ["spark.sql.ansi.enabled", "spark.driver.memory", "x", ""])
def test_a_setting_that_nobody_records_is_left_out(key: str) -> None:
    """It could change what rows a plan yields."""
    assert recorded_settings(planned_with(HONEST | {key: "true"})) == HONEST


@pytest.mark.parametrize("value", ["", "-1", "0", "many", "2147483648", "1" * 5000, "1.5", "²"])
def test_a_number_that_cannot_be_is_damage(value: str) -> None:
    """Spark would refuse it with an exception of its own."""
    with pytest.raises(CorruptDataError, match=r"shuffle.partitions=.*log/0000000000"):
        recorded_settings(planned_with(HONEST | {PARTITIONS: value}))


@pytest.mark.parametrize("value", ["", "-1", "many", "9999p", "9" * 19, "1" * 5000, "1.5m"])
def test_a_size_that_cannot_be_is_damage(value: str) -> None:
    with pytest.raises(CorruptDataError, match=r"maxPartitionBytes=.*log/0000000000"):
        recorded_settings(planned_with(HONEST | {f"{FILES}maxPartitionBytes": value}))


@pytest.mark.parametrize("planning", [{}, {"spark.durableShuffle.group.targetBytes": "x"}])
def test_a_grouping_that_cannot_be_is_damage(planning: dict[str, str]) -> None:
    with pytest.raises(CorruptDataError, match="targetBytes"):
        target_bytes(planning)


@pytest.mark.parametrize("bounds", ["", "x", "7", "[7]", '["?"]', "null", "[" * 200_000])
def test_bounds_that_cannot_be_are_damage(bounds: str) -> None:
    with pytest.raises(CorruptDataError, match="bounds of a range exchange"):
        count_of(bounds)
