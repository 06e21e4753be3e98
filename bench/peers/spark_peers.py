"""How each peer hands rows from the map tasks to the reduce tasks of one Spark job."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.bench.cluster.store import store_of
from durable_shuffle.bench.peers.systems import DURABLE, PEERS
from durable_shuffle.bench.peers.watched_storage import watched
from durable_shuffle.bench.workloads.ledger import LedgerStep
from durable_shuffle.bench.workloads.orders import TAKEN
from durable_shuffle.bench.workloads.spark_tasks import (
    ledger_function,
    map_function,
    reduce_function,
)
from durable_shuffle.bench.workloads.step import Step
from durable_shuffle.bench.workloads.workloads import WORKLOADS, Workload
from durable_shuffle.jobs.session import DurableShuffle
from durable_shuffle.shuffle.base.settings import Settings

LEDGER_ROWS = 2000
"""Rows after which the durable consumer acknowledges."""

SETTINGS = Settings(read_together_bytes=0)
"""One reduce task per partition, as the other peers have."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run gave."""

    rows: pa.Table
    total: dict[str, float] | None
    """Sums of `DurableShuffle.report()`."""


def run_workload(
    spark: SparkSession, step: Step, work: Path, *, between: Callable[[], None], again: bool = False
) -> Answer:
    """Run the step's workload with the step's peer.

    Args:
        between: called by the durable peer when all its maps have committed, before any reduce.
        again: the durable peer must not reuse what is stored.
    """
    workload, folder = WORKLOADS[step.workload], step.folder(work)
    source = spark.range(0, workload.maps, 1, workload.maps)
    mapper = map_function(step.workload, str(folder), step.seed, step.scale)
    if step.peer == DURABLE:
        policy: Any = "never" if again else "auto"
        token, store = folder / TAKEN, store_of(work)
        with watched(folder, step.fault, step.job, token, step.draw):
            durable = DurableShuffle(
                spark,
                store.url,
                job=step.job,
                storage_options=store.options,
                reuse=policy,
                settings=SETTINGS,
            )
        return _durable(durable, source, mapper, workload, step, folder, between)
    mapped = source.mapInArrow(mapper, workload.mapped)
    hand_over = PEERS[step.peer].hand_over
    assert hand_over is not None  # only this project has another way
    handed = hand_over(mapped, workload, folder / "hand-over")
    if step.workload == "W5":
        handed.mapInArrow(ledger_function(step.workload, str(folder)), workload.reduced).toArrow()
        return Answer(_ledger(folder), None)
    reducer = reduce_function(step.workload, str(folder))
    return Answer(handed.mapInArrow(reducer, workload.reduced).toArrow(), None)


def _durable(
    durable: DurableShuffle,
    source: DataFrame,
    mapper: Any,
    workload: Workload,
    step: Step,
    folder: Path,
    between: Callable[[], None],
) -> Answer:
    # the functions write and read files of the task log, which no row depends on
    version = f"{step.workload} seed {step.seed} scale {step.scale}"
    if step.workload == "W5":
        mapped = source.mapInArrow(mapper, workload.mapped)
        stored = durable.repartition(
            mapped, workload.reduces, workload.key, name="records", version=version
        )
        between()
        ledger = durable.consume(
            stored,
            consumer="ledger",
            process=LedgerStep(str(folder), workload.reduce_batch_seconds),
            schema="k long, rows long",
            checkpoint_every=LEDGER_ROWS,
        )
        assert ledger is not None  # it has a schema
        rows = ledger.toArrow()
        return Answer(_per_key(rows), durable.report().total())
    frame = durable.stage(
        source,
        map=mapper,
        keys=workload.key,
        num_partitions=workload.reduces,
        reduce=reduce_function(step.workload, str(folder)),
        schema=workload.reduced,
        map_schema=workload.mapped,
        name=step.workload.lower(),
        version=version,
    )
    between()
    return Answer(frame.toArrow(), durable.report().total())


def _ledger(folder: Path) -> pa.Table:
    """Return the ids that the ledger's files hold, repeats included."""
    found = [np.zeros(0, np.int64)]
    for path in sorted(folder.glob("ledger-*.bin")):
        data = path.read_bytes()
        found.append(np.frombuffer(data[: len(data) // 8 * 8], np.int64))  # a cut record is none
    ids = np.concatenate(found)
    return _per_key(pa.table({"k": ids, "rows": np.ones(len(ids), np.int64)}))


def _per_key(rows: pa.Table) -> pa.Table:
    grouped = rows.group_by("k").aggregate([("rows", "sum")])
    return grouped.rename_columns(["k", "rows"])
