"""Plans of many kinds, and their identities: of a checkpoint, and of the stages of a query."""

import json
import lzma
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from recorded_calls import (
    Answers,
    Player,
    Recorder,
    as_answered,
    played_session,
    readable,
)
from small_stage import SeededIds

from durable_shuffle.jobs import in_one_call, spark_versions
from durable_shuffle.jobs.identity.plan import files
from durable_shuffle.jobs.identity.plan.identity import identify_plan
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.spark_versions import ClassicFrame
from durable_shuffle.jobs.stages.identity import fingerprinted

FOLDER = Path(__file__).parents[1] / "unit" / "jobs" / "recorded_plans"
"""One file for each version of Spark."""

_SOURCE_CHARS = 4000
"""A command that is longer has Java text in it, which is compiled once."""
Identities = dict[str, dict[str, str]]
"""What is identified -> the components of its identity."""

STATEMENTS = {
    "filter": "SELECT * FROM t WHERE id > 5 AND k IN (0, 2) AND j BETWEEN 1 AND 3 "
    "AND name LIKE 'a%'",
    "case": "SELECT CASE WHEN k = 0 THEN 'none' ELSE name END, coalesce(nullif(j, 2), -1) FROM t",
    "aggregate": "SELECT k, sum(id), avg(id) FILTER (WHERE j > 1), min(name), count(*) FROM t "
    "GROUP BY k HAVING sum(id) > 3",
    "distinct aggregate": "SELECT k, count(DISTINCT j), sum(id) FROM t GROUP BY k",
    "rollup": "SELECT k, j, sum(id), grouping_id() FROM t GROUP BY ROLLUP (k, j)",
    "collected": "SELECT k, sort_array(collect_set(j)), percentile(id, 0.5), max_by(name, id) "
    "FROM t GROUP BY k",
    "pivot": "SELECT * FROM (SELECT k, j, id FROM t) PIVOT (sum(id) FOR j IN (1 AS one, 2 AS two))",
    "merge join": "SELECT /*+ MERGE(b) */ a.id, b.name FROM t a LEFT JOIN u b "
    "ON a.k = b.k AND a.id > b.n",
    "hash join": "SELECT /*+ BROADCAST(b) */ a.id, b.name FROM t a JOIN u b ON a.k = b.k",
    "cross join": "SELECT a.id, b.n FROM t a CROSS JOIN u b WHERE a.id < b.n",
    "semi join": "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.n > 2)",
    "anti join": "SELECT id FROM t WHERE k NOT IN (SELECT k FROM u WHERE n > 2)",
    "window": "SELECT id, rank() OVER (PARTITION BY k ORDER BY j DESC NULLS LAST), lag(id, 2, -1) "
    "OVER (PARTITION BY k ORDER BY id), sum(id) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN "
    "3 PRECEDING AND CURRENT ROW) FROM t",
    "sort": "SELECT * FROM t ORDER BY k DESC NULLS LAST, id",
    "first rows": "SELECT * FROM t ORDER BY id LIMIT 7",
    "union": "SELECT k, id FROM t UNION SELECT n, k FROM u",
    "set operations": "(SELECT k FROM t EXCEPT SELECT k FROM u) INTERSECT SELECT j FROM t",
    "subqueries": "WITH q AS (SELECT k, count(*) c FROM t GROUP BY k) SELECT a.k FROM q a JOIN q b "
    "ON a.c = b.k WHERE a.c > (SELECT avg(id) FROM t)",
    "lambda": "SELECT transform(array(id, k), (x, i) -> x + i), aggregate(array(id), 0L, "
    "(s, x) -> s + x), map_filter(map(k, id), (a, b) -> a < b) FROM t",
    "generate": "SELECT id, e FROM t LATERAL VIEW OUTER explode(array(id, k)) x AS e",
    "stack": "SELECT stack(2, id, 'a', k, 'b') AS (n, c) FROM t",
    "text": "SELECT concat_ws('-', name, k), regexp_replace(name, 'a+', 'b'), split(name, ','), "
    "date_format(day, 'yyyy-MM'), to_timestamp(name, 'yyyy'), cast(name AS int) FROM t",
    "json": "SELECT from_json(name, 'a INT, b ARRAY<STRING>', map('mode', 'PERMISSIVE')) FROM t",
    "literals": "SELECT 1Y, 2S, 3L, 1.5F, 2.5D, 1.20BD, 'a', X'01ff', NULL, true, "
    "DATE '2020-01-02', TIMESTAMP '2020-01-01 00:00:00', TIMESTAMP_NTZ '2020-01-01 00:00:00', "
    "INTERVAL '3' MONTH, INTERVAL '2 03:04' DAY TO MINUTE, array(1, NULL), "
    "map('a', named_struct('b', 1)) FROM t",
    "sample": "SELECT id, rand(3), randn(4) FROM t TABLESAMPLE (30 PERCENT) REPEATABLE (7)",
    "values": "SELECT a, count(*) FROM VALUES (1, 'a'), (2, NULL) AS v(a, b) GROUP BY a",
    "range": "SELECT id % 7, sum(id) FROM range(0, 100, 3, 4) GROUP BY id % 7",
    "hints": "SELECT /*+ REPARTITION(5, k) */ * FROM t",
    "rebalance": "SELECT /*+ REBALANCE(k) */ * FROM t",
    "partitions": "SELECT sum(n) FROM u WHERE part = 2 AND n > 1",
    "pruning": "SELECT u.n FROM u JOIN t ON u.part = t.k WHERE t.j = 1",
}
FRAMES: Mapping[str, Callable[[SparkSession, Path], DataFrame]] = {
    "csv": lambda spark, folder: (
        spark.read.option("header", "true")
        .option("nullValue", "-")
        .schema("a INT, b STRING")
        .csv(str(folder / "csv"))
    ),
    "json file": lambda spark, folder: spark.read.schema("a INT").json(str(folder / "json")),
    "seeded sample": lambda spark, _: spark.table("t").sample(False, 0.5, 4).dropDuplicates(["k"]),
    "ranges": lambda spark, _: spark.table("t").select("id").repartitionByRange(3, "id"),
}


def write_inputs(folder: Path) -> None:
    """Write the files that the plans read."""
    names = ["a", "ab", "b", "c"]
    for number in range(2):
        ids = list(range(10 * number, 10 * number + 10))
        columns: dict[str, Any] = {"k": [n % 3 for n in ids], "j": [n % 5 for n in ids], "id": ids}
        columns["name"] = [names[n % 4] for n in ids]
        columns["day"] = pa.array([18_000 + n for n in ids], pa.int32()).cast(pa.date32())
        _write(pa.table(columns), folder / "t" / f"{number}.parquet")
        part = pa.table({"k": [0, 1, 2], "n": [1, 2, 3], "name": names[:3]})
        _write(part, folder / "u" / f"part={number + 1}" / "0.parquet")
    for kind, text in (("csv", "a,b\n1,x\n-,y\n"), ("json", '{"a": 1}\n')):
        (folder / kind).mkdir()
        (folder / kind / f"0.{kind}").write_text(text)
    for path in folder.rglob("*.*"):
        os.utime(path, (0, 0))  # a file that is written again is the same input


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def frames_over(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    """Return the frames to be identified, by name."""
    for name in ("t", "u"):
        spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)
    found = {name: spark.sql(text) for name, text in STATEMENTS.items()}
    return found | {name: made(spark, folder) for name, made in FRAMES.items()}


@patch.object(files, "_stat", lambda _: None)  # when the answers are played, the files are gone
def identities(df: DataFrame) -> Identities:
    """Return the identities of a frame and of the stages of a query that repartitions it.

    Raises:
        AssertionError: one of them cannot be recognised in another run.
    """
    known = KnownRdds()
    whole = identify_plan(df, known)
    assert not whole.unresolved, whole.unresolved
    engine: Any = SimpleNamespace(
        known=known, check_columns=lambda _: None, identify=lambda one: identify_plan(one, known)
    )
    ids = SeededIds(random.Random(1))
    stages: Any = SimpleNamespace(
        fingerprinted=lambda plan, version: fingerprinted(plan, version, ids),
        store=SimpleNamespace(is_far=False),
    )
    # so all operators of the frame are below an exchange that is stored
    query = PlannedQuery(df.repartition(7), "query", engine, stages, None, {}, {})
    found = {"whole": dict(whole.components)}
    for cut in query.cuts:
        identity = query.identity(cut)
        assert not identity.unresolved, identity.unresolved
        kind = f"cut {cut.number}: {cut.exchange.kind} {cut.exchange.partitions}"
        found[kind] = {**identity.components, "fingerprint": identity.fingerprint}
    return found


def record(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what the JVM of this session is asked about all plans, and their identities."""
    write_inputs(folder)
    recorder, plans = Recorder(spark), dict[str, Any]()
    for name, df in frames_over(spark, folder).items():
        answers: Answers = {}
        with recorder.noting(answers):
            found = identities(df)
        frame = cast("Any", df)._jdf._target_id
        plans[name] = {"frame": frame, "answers": answers, "identities": found}
    first = {asked: found for asked, found in recorder.first.items() if len(asked) < _SOURCE_CHARS}
    return {"spark": spark.version, "ids": recorder.ids, "first": first, "plans": plans}


def save(recorded: Mapping[str, Any]) -> tuple[Path, list[str]]:
    """Keep what was recorded, in the place of what is kept of this version of Spark.

    Returns:
        The file, and the plans that have other identities now.
    """
    minor = ".".join(str(recorded["spark"]).split(".")[:2])
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"spark-{minor}.json.xz"
    before = load(path)["plans"] if path.exists() else {}
    other = [
        name
        for name, plan in recorded["plans"].items()
        if name in before and before[name]["identities"] != plan["identities"]
    ]
    text = json.dumps(_with_answers(recorded, readable))
    for place in (str(Path(pyspark.__file__).parent), str(Path.cwd())):
        text = text.replace(place, _elsewhere(place))
    path.write_bytes(lzma.compress(text.encode(), preset=9))
    return path, other


def _elsewhere(place: str) -> str:
    """Return another path for what must not be kept: the folders of the machine that records.

    It is as long, because answers say where their texts end.
    """
    return "/".ljust(len(place), "x")


def load(path: Path) -> dict[str, Any]:
    """Return what `save` kept."""
    return _with_answers(json.loads(lzma.decompress(path.read_bytes())), as_answered)


def _with_answers(recorded: Mapping[str, Any], change: Callable[[str, Any], Any]) -> dict[str, Any]:
    plans = {
        name: {
            **plan,
            "answers": {
                asked: [change(asked, one) for one in of] for asked, of in plan["answers"].items()
            },
        }
        for name, plan in recorded["plans"].items()
    }
    return {**recorded, "plans": plans}


class Recording:
    """One application that was recorded; its plans are identified without a JVM.

    What an application asks once was asked for the first plan that needed it. So `every` comes
    first, and then single plans, with other answers.
    """

    def __init__(self, path: Path) -> None:
        recorded = load(path)
        self.plans: dict[str, Any] = recorded["plans"]
        self._player = Player(recorded["ids"], recorded["first"])
        self._spark = played_session(self._player)
        package = "org.apache.spark.sql." + "classic." * (not recorded["spark"].startswith("3."))
        self._patches = (
            patch.object(spark_versions, "_CLASSES", package),
            patch.object(in_one_call, "_compiled", lambda _: self._player.runner),
        )

    def every(self) -> Iterator[tuple[str, Identities, list[str]]]:
        """Yield each plan's name, its identities, and what was recorded but not asked."""
        for name in self.plans:
            yield name, self.identities(name), self._player.left()

    def identities(self, name: str, changed: Answers | None = None) -> Identities:
        """Return the identities of a plan, given other answers to some questions."""
        plan = self.plans[name]
        self._player.answers = plan["answers"] | (changed or {})
        frame = ClassicFrame(self._player.object(plan["frame"]), self._spark)
        one, two = self._patches
        with one, two:
            return identities(cast("DataFrame", frame))
