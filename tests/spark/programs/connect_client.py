"""A Spark Connect client with a local server: `connect_client.py ROOT FOLDER STEP`.

A process cannot have both a classic and a Connect session, so these checks run in this one. The
answer, one JSON line, holds the observations of each step; the test judges them. STEP is that from
case to case of the identity matrix.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.plan import CachedRemoteRelation

from durable_shuffle import DurableShuffle, DurableShuffleError, Grouped
from durable_shuffle.jobs import claims
from durable_shuffle.jobs.deploy.preflight import RemoteStorage, preflight
from durable_shuffle.jobs.streaming.register import can_register
from durable_shuffle.pipelines import spark_tasks
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.streaming import register


def counting(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A map function that adds a line to FOLDER/<partition> for each partition that it reads."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        from pyspark import TaskContext

        for batch in batches:
            with Path(folder, str(TaskContext.get().partitionId())).open("a") as file:
                file.write("run\n")
            yield batch

    return count


def outcome(call: Callable[[], object]) -> str:
    """Return class and text of our error, or "none"."""
    try:
        call()
    except DurableShuffleError as e:
        return f"{type(e).__name__}: {e}"
    return "none"


def failure(call: Callable[[], object]) -> str:
    """Return the text of any error."""
    try:
        call()
    except Exception as e:  # noqa: BLE001
        return str(e)
    return "none"


def to_first(batch: pa.RecordBatch) -> Any:
    """Put all rows into partition 0."""
    return np.zeros(batch.num_rows, dtype=np.int64)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return v and twice v."""
    values = batch.column("v").to_pylist()
    return pa.RecordBatch.from_pydict({"v": values, "w": [2 * v for v in values]})


def runs_in(folder: str) -> dict[str, int]:
    """Partition -> how often its rows were read."""
    return {p.name: len(p.read_text().splitlines()) for p in Path(folder).iterdir()}


def placed(df: DataFrame) -> list[list[Any]]:
    """Return the rows with their partitions, sorted."""
    return sorted(list(row) for row in df.select("*", F.spark_partition_id()).collect())


def stages(spark: SparkSession, root: str, folder: str) -> dict[str, Any]:
    """Repartition, durable, reuse, explain and release."""
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    df = spark.range(0, 40, 1, 3).selectExpr("id % 7 as k", "id as v")
    counted = df.mapInArrow(counting(folder), "k long, v long")
    first = DurableShuffle(spark, root, job="tests", version="1")
    missed = first.explain.repartition(counted, 4, "k")
    out = first.repartition(counted, 4, "k")
    runs = [runs_in(folder)]
    claims._held.clear()  # a driver of its own, as in another process
    again = DurableShuffle(spark, root, job="tests", version="1")
    hit = again.explain.repartition(counted, 4, "k")
    reused = again.repartition(counted, 4, "k")
    runs.append(runs_in(folder))
    found = {
        "runs": runs,
        "stored": placed(out),
        "reused": placed(reused),
        "native": placed(df.repartition(4, "k")),
        "groups": sorted(list(row) for row in out.groupBy("k").count().collect()),
        "columns": out.columns,
        "explained": [missed.stored, missed.why, hit.stored, hit.why],
        "reports": [first.report().to_dict(), again.report().to_dict()],
        "shown": str(again.report()),
        "kept": [row.v for row in again.durable(df, name="kept").collect()],
        "names": [info.name for info in again.stages()],
        "fenced": outcome(lambda: first.repartition(df, 2, "k")),
        "adaptive": spark.conf.get("spark.sql.adaptive.enabled"),
    }
    none = spark.range(0, 40, 1, 3).select()
    found["no_columns"] = [
        again.durable(none, name="none").count(),
        again.repartition(none, 2, name="none").count(),
        again.stage(none, keys=to_first, num_partitions=2, name="none").count(),
        again.durable(none, name="none").crossJoin(spark.range(3)).count(),
    ]
    again.release("none")
    local = spark.sql("SELECT * FROM VALUES (1), (2), (NULL), (1) AS t(k)")
    found["local"] = sorted(map(str, again.durable(local, name="local").collect()))
    again.release("local")
    observed = df.observe(Observation("o"), F.count(F.lit(1)).alias("n"))
    found["observed"] = outcome(lambda: again.durable(observed.where("v > 1"), name="o"))
    consumed = again.consume(reused, consumer="c", process=doubled, schema="v long, w long")
    assert consumed is not None
    found["consumed"] = sorted(list(row) for row in consumed.collect())
    found["consumer"] = again.report().to_dict()["consumers"]
    found["user_error"] = failure(
        lambda: again.consume(reused, consumer="d", process=lambda batch: 1 // 0)
    )
    found["other_consumer"] = outcome(
        lambda: again.consume(reused, consumer="c", process=lambda batch: None)
    )
    unknown = DurableShuffle(spark, root, job="unknown")
    unknown.repartition(df, 2, "k")
    found["without_version"] = unknown.explain.repartition(df, 2, "k").why
    found["freed"] = [freed.data_bytes for freed in again.release("kept")]
    found["left"] = [info.name for info in again.stages()]
    found["after_release"] = [
        outcome(lambda: again.release("kept")),
        outcome(lambda: again.release("nothing")),
    ]
    found["bad_column"] = outcome(lambda: again.repartition(df, 2, "nope"))
    found["bad_n"] = outcome(lambda: again.repartition(df, 0, "k"))
    found["map_key"] = outcome(lambda: again.repartition(df.selectExpr("map(1, 2) as m"), 2, "m"))
    found["url"] = outcome(lambda: DurableShuffle(spark, job="tests"))
    return found


def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the sum of v for each k."""
    rows = list(batches)
    if rows:
        sums = pa.Table.from_batches(rows).group_by("k").aggregate([("v", "sum")])
        yield from sums.rename_columns(["k", "total"]).to_batches()


def python_stages(spark: SparkSession, root: str) -> dict[str, Any]:
    """A Python map and reduce, grouped, and chained; and calls that need classic Spark."""
    shuffle = DurableShuffle(spark, root, job="tests", version="1")
    df = spark.range(0, 40, 1, 3).selectExpr("id % 7 as k", "id as v")

    def run() -> DataFrame:
        return shuffle.stage(
            df, keys="k", num_partitions=3, reduce=summed, schema="k long, total long"
        )

    above = shuffle.stage(
        run(),
        keys="k",
        num_partitions=2,
        reduce=Grouped(lambda key, group: group),
        name="above",
    )
    return {
        "sums": sorted(list(row) for row in run().collect()),
        "above": sorted(list(row) for row in above.collect()),
        "decisions": [stage.action for stage in shuffle.report().stages],
        "objects": outcome(lambda: shuffle.stage_objects(df, 2)),  # type: ignore[arg-type]
        "query": outcome(lambda: shuffle.query(df.groupBy("k").count())),
        "transparent": outcome(lambda: shuffle.transparent().__enter__()),
    }


def remote(spark: SparkSession, root: str) -> dict[str, Any]:
    """The storage contract, as tasks carry it out."""
    storage = RemoteStorage(spark, LocalStorage(root))
    content = bytes(range(256)) * 40
    found: dict[str, Any] = {
        "created": str(storage.put_if_absent("c/slot", b"first")),
        "exists": str(storage.put_if_absent("c/slot", b"second")),
        "read": storage.read("c/slot").decode(),
        "missing": outcome(lambda: storage.read("c/gone")),
        "short": outcome(lambda: storage.read_range("c/slot", 2, 9)),
        "bad_key": outcome(lambda: storage.read("../c")),
    }
    storage.put("c/data", [content[:5000], memoryview(content)[5000:]])
    found["put_twice"] = outcome(lambda: storage.put("c/data", [b"x"]))
    found["whole"] = Path(root, "c", "data").read_bytes() == content
    found["range"] = bytes(storage.read_range("c/data", 250, 12)) == content[250:262]
    ranges = [ByteRange("c/data", 9, 3), ByteRange("c/slot", 0, 2)]
    found["ranges"] = [bytes(view).hex() for view in storage.read_ranges(ranges)]
    found["listed"] = sorted((info.key, info.size_bytes) for info in storage.list("c/"))
    storage.delete(["c/slot", "c/gone"])
    found["after_delete"] = [info.key for info in storage.list("c/")]
    found["nothing"] = list(storage.list("empty/"))
    return found


def worker_ids(spark: SparkSession) -> set[int]:
    """Return the process ids of the Python workers that run two tasks."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        from pyspark import BarrierTaskContext

        BarrierTaskContext.get().barrier()  # both tasks run
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"id": [os.getpid()]})

    tasks = spark.range(0, 2, 1, 2).mapInArrow(look, "id long", barrier=True)
    return {row.id for row in tasks.collect()}


def workers(spark: SparkSession, root: str) -> list[int]:
    """Return how many of the workers are still there after a checkpoint, and requests by tasks."""
    before = worker_ids(spark)
    DurableShuffle(spark, root, job="workers").checkpoint(spark.range(0, 40, 1, 2)).collect()
    after = worker_ids(spark)
    RemoteStorage(spark, LocalStorage(root)).put_if_absent("w/slot", b"x")
    return [len(before & after), len(before & worker_ids(spark))]


def told_apart(spark: SparkSession, root: str) -> dict[str, Any]:
    """Different plans under one version: rows and decisions, requested twice.

    The second time all objects are new: plan ids, lambda variables and pickled code differ.
    """
    Path(root, "text").write_text("a\n")

    def plans() -> dict[str, DataFrame]:
        df = spark.range(0, 6, 1, 2)
        text = spark.read.text(f"{root}/text")
        two = spark.range(2)
        return {
            "low": df.where("id < 3"),
            "high": df.where("id >= 3"),
            "other rows": spark.range(1000, 1003),
            "local": spark.createDataFrame([(1, "a"), (2, "b")], "id long, v string"),
            "other local": spark.createDataFrame([(1, "a"), (2, "c")], "id long, v string"),
            "many local": spark.createDataFrame(pa.table({"id": list(range(40_000))})),
            "other many": spark.createDataFrame(pa.table({"id": [*range(39_999), -1]})),
            "function": df.select(F.udf(lambda n: n + 1, "long")("id").alias("id")),
            "other function": df.select(F.udf(lambda n: n + 2, "long")("id").alias("id")),
            "lambda": df.select(F.transform(F.array("id"), lambda x: x + 1).alias("id")),
            "other lambda": df.select(F.transform(F.array("id"), lambda x: x + 2).alias("id")),
            "two lambda": df.select(F.transform(F.array("id"), lambda x, i: x + i).alias("id")),
            "join": df.join(df.where("id > 1"), "id"),
            "other join": df.join(df.where("id > 2"), "id"),
            "sql": spark.sql("select * from range(4) where id > ?", args=[1]),
            "other sql": spark.sql("select * from range(4) where id > ?", args=[2]),
            "frames in sql": spark.sql("select * from {a} join {b} using (id)", a=df, b=two),
            "other frames": spark.sql("select * from {b} join {a} using (id)", a=df, b=two),
            "text": text,
        }

    shuffle = DurableShuffle(spark, root, job="told", version="one for all")
    found: dict[str, Any] = {"wrong": [], "decisions": []}

    def judge(name: str, df: DataFrame) -> None:
        stored = sorted(map(str, shuffle.durable(df).collect()))
        if stored != sorted(map(str, df.collect())):
            found["wrong"].append(name)

    for _ in range(2):
        for name, df in plans().items():
            judge(name, df)
        found["decisions"].append([stage.action for stage in shuffle.report().stages])
    above = shuffle.durable(plans()["low"]).where("id > 0")
    for _ in range(2):
        judge("above", above)
    found["above"] = [stage.action for stage in shuffle.report().stages[-2:]]
    spark.range(3).createOrReplaceTempView("told")
    judge("view", spark.table("told"))
    judge("view again", spark.table("told"))
    spark.range(4).createOrReplaceTempView("told")
    judge("view over a longer range", spark.table("told"))
    spark.createDataFrame([(7,)], "id long").createOrReplaceTempView("told")
    judge("view over rows", spark.table("told"))
    spark.createDataFrame([(8,)], "id long").createOrReplaceTempView("told")
    found["view over other rows"] = outcome(lambda: shuffle.durable(spark.table("told")))
    with_zone = spark.sql("select cast(timestamp_seconds(0) as string) as t")
    judge("zone", with_zone)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    judge("other zone", with_zone)
    spark.conf.unset("spark.sql.session.timeZone")
    keys = [F.udf(lambda n, m=m: n % m, "long")("id") for m in (2, 3)]
    for m, key in zip((2, 3), keys, strict=True):
        placed_rows = placed(shuffle.repartition(plans()["low"], 6, key))
        where: dict[int, set[int]] = {}
        for number, partition in placed_rows:
            where.setdefault(number % m, set()).add(partition)
        found["wrong"] += [f"key {k}" for k, parts in where.items() if len(parts) > 1]
    return found


def inputs(spark: SparkSession, folder: Path) -> dict[str, str]:
    """Return the errors of each step of the inputs that the server names."""
    from connect_inputs import all_steps

    return all_steps(spark, folder)


def matrix(spark: SparkSession, folder: Path, step: int) -> dict[str, list[str]]:
    """Return the errors of every so-many-th case of the identity matrix."""
    from identity_judge import OneDriver, World, judge
    from identity_matrix import connect_cases

    found = {}
    shuffle = DurableShuffle(spark, f"{folder}/root", job="matrix")
    for number, case in enumerate(connect_cases(step)):
        place = folder / str(number)
        place.mkdir(parents=True)

        def drive(_: SparkSession, version: str | None, prefix: str = f"case{number}") -> OneDriver:
            return OneDriver(shuffle, prefix, version)

        wrong = judge(World(spark, place), case, drive, connect=True)
        found[f"{case.row}: {case.what}"] = wrong
    return found


class Elsewhere(LocalStorage):
    """A folder as a client on another host would see it: a different folder under the same path.

    A copy that reached a task sees the executors' folder.
    """

    def __init__(self, seen: str, executors: str) -> None:
        super().__init__(seen)
        self._executors = executors

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str]]:
        return LocalStorage, (self._executors,)


def other_host(spark: SparkSession, root: str) -> dict[str, Any]:
    """Decisions of the check before the first write, for clients that see other folders."""
    ids = RandomIds()
    near, far = f"{root}-client", f"{root}-executors"
    through_tasks, _ = preflight(spark, Elsewhere(near, far), "tests", ids)
    through_tasks.put_if_absent("tests/log/0000000000", b"x")
    direct, _ = preflight(spark, LocalStorage(far), "tests", ids)
    return {
        "ways": [type(through_tasks).__name__, type(direct).__name__],
        "at_executors": Path(far, "tests/log/0000000000").read_text(),
        "at_client": [str(p) for p in Path(near).rglob("*") if p.is_file()],
        "left": sorted(str(p.relative_to(far)) for p in Path(far).rglob("*") if p.is_file()),
    }


def pipeline(spark: SparkSession) -> str:
    """Return the result of trying to run a pipeline's tasks here."""
    try:
        spark_tasks(spark)
    except DurableShuffleError as error:
        return str(error)
    return "nothing"


def streams(spark: SparkSession, root: str) -> dict[str, Any]:
    """Write and read one stage, each as a stream and as a table."""
    register(spark)
    place = {"url": f"{root}/stages", "job": "tests", "stage": "hop"}
    spark.range(0, 100, 1, 2).selectExpr("id", "id % 7 AS k").write.parquet(f"{root}/in")
    rows = spark.readStream.schema("id long, k long").parquet(f"{root}/in")
    writer = rows.writeStream.format("durable_shuffle").options(**place, keys="k", partitions="3")
    writer.option("checkpointLocation", f"{root}/w").trigger(
        availableNow=True
    ).start().awaitTermination()
    stream = spark.readStream.format("durable_shuffle").options(**place, maxRecordsPerTrigger="40")
    sink = stream.load().writeStream.format("parquet").option("path", f"{root}/out")
    query = sink.option("checkpointLocation", f"{root}/r").trigger(availableNow=True).start()
    query.awaitTermination()
    table = spark.read.format("durable_shuffle").options(**place).load()
    more = spark.range(100, 110).selectExpr("id", "id % 7 AS k")
    other = {**place, "stage": "table"}
    more.write.format("durable_shuffle").mode("append").options(**other).save()
    return {
        "delivered": sorted(row.id for row in spark.read.parquet(f"{root}/out").collect()),
        "stored": sorted(row.id for row in table.collect()),
        "steps": len(list(Path(root, "r", "commits").glob("[0-9]*"))),
        "table": spark.read.format("durable_shuffle").options(**other).load().count(),
        "misspelled": failure(
            lambda: spark.read.format("durable_shuffle").options(**place, column="k").load().count()
        ),
    }


def main(root: str, folder: str, step: str) -> None:
    """Run all parts."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
    # PySpark's destructor of a checkpoint calls the server. If Python's collector runs it inside
    # another call of the client, it may wait for ever. The session's end frees checkpoints, too.
    del CachedRemoteRelation.__del__
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{root}/warehouse")
        .getOrCreate()
    )
    Path(root, "told").mkdir()
    answer = {
        "workers": workers(spark, f"{root}/workers"),
        "told": told_apart(spark, f"{root}/told"),
        "matrix": matrix(spark, Path(root, "matrix"), int(step)),
        "inputs": inputs(spark, Path(root, "inputs")),
        "stages": stages(spark, f"{root}/stages", folder),
        "python": python_stages(spark, f"{root}/python"),
        "remote": remote(spark, f"{root}/remote"),
        "other_host": other_host(spark, f"{root}/host"),
        "pipeline": pipeline(spark),
        "streams": streams(spark, f"{root}/streams") if can_register() else None,
    }
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
