"""A join in which one key has 30% of six million rows, against Spark with adaptive execution.

Twice: with Spark's settings as they come, under which neither divides the large partition, and with
thresholds so low that both do. Bar: 1.2 of Spark's time. Writes its table of docs/benchmarks.md.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from document import record
from places import Place
from pyspark.sql import SparkSession

from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.shuffle.base.clock import SystemClock

BAR = 1.2
HEAD = ("settings", "Spark s", "stored s", "ratio", "bar", "rounds")
SKEW = "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes"
LOW = {SKEW: "8MB", "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4MB"}

QUERY = """
    SELECT w % 100 AS g, count(*) AS n, max(v0) AS a, max(v1) AS b, max(v2) AS c, max(v3) AS d
    FROM many JOIN few USING (k) GROUP BY w % 100
"""


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(0)
@pytest.mark.parametrize("divided", [False, True], ids=["as they come", "divided"])
def test_skewed_join(
    benchmark: Any,
    bench_spark: SparkSession,
    rounds: int,
    measuring: bool,
    tmp_path: Path,
    place: Place,
    divided: bool,
) -> None:
    """Rows are the same; the ratio of medians over interleaved rounds."""
    rows, keys = (6_000_000, 1_500_000) if measuring else (30_000, 3_000)
    session = bench_spark.newSession()
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    for key, value in LOW.items() if divided else ():
        session.conf.set(key, value)
    many = session.range(0, rows, 1, 8).selectExpr(
        f"if(id % 10 < 3, 7, (id * 2654435761) % {keys}) as k",
        *(f"xxhash64(id, {i}) as v{i}" for i in range(4)),
    )
    few = session.range(0, keys, 1, 8).selectExpr("id as k", "xxhash64(id) as w")
    for name, frame in (("many", many), ("few", few)):
        frame.write.parquet(str(tmp_path / name))
        session.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    durable = place.new().open(session, reuse="never")
    clock = SystemClock()

    def run() -> list[Any]:
        return sorted(durable.query(session.sql(QUERY)).collect())

    def native() -> list[Any]:
        return sorted(session.sql(QUERY).collect())  # a frame keeps the stages that it has run

    def join_and_release() -> float:
        """Return the seconds of the join; Spark deletes its files behind the user's back, too."""
        begun = clock.monotonic()
        run()
        seconds = clock.monotonic() - begun
        durable.release()
        return seconds

    assert run() == native()
    shared = [text for text in durable.report().adapted if "because of skew" in text]
    assert bool(shared) is (divided and measuring)
    durable.release()
    cases: dict[str, Callable[[], Any]] = {"native": native, "durable": join_and_release}
    timings = benchmark.pedantic(interleave, (cases,), {"rounds": rounds, "warmups": 1}, rounds=1)
    ratio = timings.ratio("durable", "native")
    benchmark.extra_info.update(ratio=ratio, seconds=dict(timings.seconds))
    print(f"\n{timings.table('native')}")
    if measuring:
        name = "8 MB, slices of 4 MB" if divided else "as they come (256 MB)"
        seconds = [f"{timings.median(case):.2f}" for case in cases]
        record("skew", HEAD, (name, *seconds, f"{ratio:.2f}", f"{BAR}", str(rounds)))
        assert ratio <= BAR
