"""A driver whose shuffle files are lost while it stores stages over them.

`lost_files_driver.py FOLDER SUPPORT [MASTER]`: SUPPORT has the module `unstable_programs`. Prints
one JSON line: name of a case -> "" if the stored rows are those of one execution, else what is
wrong. On a cluster, files are lost with their executor, which is killed. In local mode they are
deleted: Spark takes this process for a lost executor then, and ends it ten minutes later.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle


class LostFiles:
    """Passes rows on. When the first producer is through, the files of Spark's exchanges are gone,
    as with an executor, or with one; once. What is computed anew arrives in another order."""

    def __init__(self, order: Path, happened: Path, *, executors: bool) -> None:
        self._order, self.happened, self._executors = order, happened, executors

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from items
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 0 or self.happened.exists():
            return
        self.happened.touch()
        self._order.write_text("2")
        (_kill_other_executor if self._executors else _delete_files)()

    def durable_identity(self) -> str:
        return "the rows as they are"


def _delete_files() -> None:
    import os

    folders = os.environ["SPARK_LOCAL_DIRS"].split(",")
    files = [file for folder in folders for file in Path(folder).glob("*/shuffle_*")]
    assert files
    for file in files:
        file.unlink()


def _kill_other_executor() -> None:
    """Kill the executor of this application in which this task does not run."""
    import os
    import signal

    def parent(process: int) -> int:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

    ours, above = os.getpid(), set[int]()
    while ours > 1:
        above.add(ours)
        ours = parent(ours)
    others = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        process = int(path.parent.name)
        try:
            command = path.read_bytes()
            # all executors of a cluster within a driver are children of that driver
            beside = process not in above and parent(process) in above
        except (FileNotFoundError, ProcessLookupError):
            continue
        if beside and b"CoarseGrainedExecutorBackend" in command:
            others.append(process)
    assert others
    for process in others:
        os.kill(process, signal.SIGKILL)


CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df),
    "repartition": lambda s, df: s.repartition(df, 3, df.columns[0]),
    "stage": lambda s, df: s.stage(df, keys=df.columns[0], num_partitions=3),
}


def main(folder: str, support: str, master: str = "local[2]") -> None:
    """Run all cases."""
    sys.path.append(support)
    import unstable_programs

    register_pickle_by_value(unstable_programs)
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.adaptive.enabled", "false")
    builder = builder.config("spark.shuffle.io.retryWait", "100ms")  # of an executor that is gone
    spark = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    found: dict[str, str] = {}

    def case(name: str, wrong: Callable[[Any, DurableShuffle, LostFiles], bool]) -> None:
        here = Path(folder) / name
        arrival = unstable_programs.Arrival(here)
        fault = LostFiles(here / "order", here / "happened", executors=not local)
        shuffle = DurableShuffle(spark, str(here / "root"), job="tests", version="1")
        differs = wrong(arrival, shuffle, fault)
        happened = fault.happened.exists()
        found[name] = "rows of two executions" if differs else "" if happened else "nothing lost"

    local = master.startswith("local[")
    for step in ("row_number", "count") if local else ("count",):
        program = unstable_programs.of_step(step, "by the last column")
        for call, make in CALLS.items():

            def frame(arrival: Any, shuffle: DurableShuffle, fault: LostFiles) -> bool:
                df = program.steps(arrival.rows(spark))  # noqa: B023 - called in this turn
                wanted = program.common(df)  # noqa: B023
                stored = make(shuffle, df.mapInArrow(fault, df.schema))  # noqa: B023
                return bool(program.common(stored) != wanted)  # noqa: B023

            case(f"{step} {call}", frame)

    def pairs(arrival: Any, shuffle: DurableShuffle, fault: LostFiles) -> bool:
        rows = arrival.rows(spark).rdd.map(lambda row: (row.k, row.p))
        firsts = rows.groupByKey(4).mapValues(lambda found: next(iter(found)))
        moved = firsts.map(lambda pair: (pair[1], pair[0])).partitionBy(4)
        stored = shuffle.stage_objects(moved.mapPartitions(fault), 3)
        keys = sorted(key for _, key in stored.collect())
        return keys != list(range(unstable_programs.KEYS))

    case("objects", pairs)
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
