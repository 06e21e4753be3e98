"""The commands on a stage of Python objects: pairs, whose Arrow schema is empty."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.serialization.msgpack_codec import PAIR_CODEC
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import STAGE_RECORDS, StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage
from durable_shuffle.shuffle.seal.seal import seal_stage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.producer import run_pair_producer

PAIRS = [("a", 1), ("b", [2, 3]), ("c", None)]


@pytest.fixture
def pairs(job: Any) -> StageHandle:
    """A sealed stage `pairs` of one producer and one partition, in the job of `job`."""
    ids, storage = RandomIds(), LocalStorage(job.url)
    path = StagePath("nightly", "pairs", "c" * 32, ids.new_id())
    describe = replace(
        job.orders.describe,
        name=path.name,
        fingerprint=path.fingerprint,
        incarnation=path.incarnation,
        codec=PAIR_CODEC,
        schema=schema_to_bytes(pa.schema([])),
        columns=("key", "value"),
        partitioner="function",
        producers=1,
        partitions=1,
    )
    stage = describe_stage(storage, path, describe)
    names = path.name, path.fingerprint, path.incarnation
    job.log.append(StageUse(ids.new_id(), job.log.generation, *names))
    made = run_pair_producer(
        stage,
        0,
        PAIRS,
        lambda keys: np.zeros(len(keys), np.uint16),
        attempt=ids.new_id(),
        producers=1,
        settings=Settings(),
    )
    seal_stage(
        stage,
        {0: made.committed},
        producers=1,
        generation=job.log.generation,
        record_id=ids.new_id(),
    )
    return stage


def test_inspect_of_a_stage_of_objects(
    pairs: StageHandle, job: Any, run: Callable[..., Any]
) -> None:
    """It has columns of objects, and no Arrow schema that could name their types."""
    del pairs
    found = json.loads(run("inspect", job.url, "nightly", "pairs", "--json").stdout)["stage"]
    assert found["description"]["schema"] == ["key: object", "value: object"]
    assert (found["seal"]["rows"], found["description"]["keys"]) == (len(PAIRS), ["key"])
    assert "key: object" in run("inspect", job.url, "nightly", "pairs").stdout
    shown = run("cat", job.url, "nightly", "pairs", "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in shown] == [{"key": k, "value": v} for k, v in PAIRS]


@pytest.mark.parametrize("columns", [("key",), ("key", "value", "more")])
def test_a_description_of_pairs_names_two_columns(
    pairs: StageHandle, job: Any, run: Callable[..., Any], columns: tuple[str, ...]
) -> None:
    """Else it is damaged, and every command says so."""
    log = pairs.log()
    forged = replace(pairs.describe)
    object.__setattr__(forged, "columns", columns)
    Path(job.url, log.key(0)).unlink()
    log.append(0, STAGE_RECORDS.encode(forged))
    for command, *more in (("cat",), ("cat", "--json"), ("inspect",)):
        result = run(command, job.url, "nightly", "pairs", *more)
        assert (result.exit_code, log.key(0) in result.output) == (1, True), result.output
        assert "corrupt_data" in result.output
