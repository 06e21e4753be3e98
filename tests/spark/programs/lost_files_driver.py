"""A driver whose own shuffle files are lost while it stores stages over them.

`lost_files_driver.py FOLDER SUPPORT`: SUPPORT has the module `unstable_programs`. Prints one JSON
line: name of a case -> "" if the stored rows are those of one execution, else what is wrong. Spark
takes this process for a lost executor from the first loss on, and ends it ten minutes later.
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
    as with an executor; once. What is computed anew arrives in another order."""

    def __init__(self, order: Path, happened: Path) -> None:
        self._order, self.happened = order, happened

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        import os

        from pyspark import TaskContext

        yield from items
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 0 or self.happened.exists():
            return
        self.happened.touch()
        self._order.write_text("2")
        folders = os.environ["SPARK_LOCAL_DIRS"].split(",")
        files = [file for folder in folders for file in Path(folder).glob("*/shuffle_*")]
        assert files
        for file in files:
            file.unlink()

    def durable_identity(self) -> str:
        return "the rows as they are"


CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df),
    "repartition": lambda s, df: s.repartition(df, 3, df.columns[0]),
    "stage": lambda s, df: s.stage(df, keys=df.columns[0], num_partitions=3),
}


def main(folder: str, support: str) -> None:
    """Run all cases."""
    sys.path.append(support)
    import unstable_programs

    register_pickle_by_value(unstable_programs)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.adaptive.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    found: dict[str, str] = {}

    def case(name: str, wrong: Callable[[Any, DurableShuffle, LostFiles], bool]) -> None:
        here = Path(folder) / name
        arrival = unstable_programs.Arrival(here)
        fault = LostFiles(here / "order", here / "happened")
        shuffle = DurableShuffle(spark, str(here / "root"), job="tests", version="1")
        differs = wrong(arrival, shuffle, fault)
        happened = fault.happened.exists()
        found[name] = "rows of two executions" if differs else "" if happened else "nothing lost"

    for step in ("row_number", "count"):
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
