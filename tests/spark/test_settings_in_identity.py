"""Every setting counts, unless it is on a list of settings that change no row."""

import datetime
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest
from excluded_cases import every
from identity_plans import identify
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from settings_cases import BATCHES, COUNTED, DEPLOYED, OF_HADOOP, OF_SQL, ONE_BOUND

from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.identity.plan import settings as settings_module
from durable_shuffle.jobs.identity.plan.harmless import (
    DEPLOYMENT,
    HADOOP,
    TUNING,
    WITHOUT_FUNCTIONS,
)
from durable_shuffle.jobs.identity.plan.settings import is_harmless, settings_digest

pytestmark = pytest.mark.spark


@contextmanager
def configured(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session for a while, those that may not be changed in one, too."""
    conf = cast("Any", session)._jsparkSession.sessionState().conf()
    before = {key: session.conf.getAll.get(key) for key in settings}
    try:
        for key, value in settings.items():
            conf.setConfString(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                conf.unsetConf(key)
            else:
                conf.setConfString(key, old)


@pytest.fixture(scope="module")
def own(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session with one view per format of files."""
    session = spark.newSession()
    folder = tmp_path_factory.mktemp("formats")
    rows = session.range(0, 60, 1, 3).selectExpr(
        "id",
        "id % 7 AS k",
        "CAST(id AS DECIMAL(9, 2)) / 4 AS d",
        "if(id % 5 = 0, NULL, concat('a ', id)) AS s",
        "timestamp_seconds(id * 4000) AS t",
        "date_add(DATE'2024-01-01', int(id)) AS day",
    )
    for name in ("parquet", "orc", "json", "csv"):
        rows.write.option("header", "true").format(name).save(str(folder / name))
        read = session.read.schema(rows.schema).option("header", "true").format(name)
        read.load(str(folder / name)).createOrReplaceTempView(name)
    session.read.text(str(folder / "csv")).createOrReplaceTempView("text")
    session.udf.register("later", F.udf(lambda x: x and x + datetime.timedelta(1), "date"))
    return session


QUERIES = [
    "SELECT id, k, d, s, t, later(day) AS day FROM parquet "
    "WHERE day > DATE'2024-01-09' OR s IN ('a 1', 'a 2', 'a 3')",
    "SELECT id, s, t FROM orc WHERE id > 11 AND k IN (1, 2, 3)",
    "SELECT s, d, t, day FROM csv WHERE id < 50",
    "SELECT id, s, t FROM json WHERE s IS NOT NULL",
    "SELECT value, length(value) AS n FROM text",
    "SELECT k, sum(d), count(DISTINCT s), array_sort(collect_list(id)) FROM parquet GROUP BY k",
    "SELECT a.id, b.s, (SELECT max(d) FROM orc) AS m "
    "FROM parquet a JOIN orc b ON a.k = b.k AND a.id < b.id",
    "SELECT id, sum(d) OVER (PARTITION BY k ORDER BY id) AS r FROM parquet",
    "SELECT * FROM (SELECT id FROM parquet ORDER BY id LIMIT 7) a "
    "CROSS JOIN (SELECT k FROM orc WHERE id < 3) b",
    "SELECT session_window(t, '2 hours') AS w, count(*) FROM orc "
    "GROUP BY k, session_window(t, '2 hours')",
]


def rows_of(session: SparkSession) -> list[list[str]]:
    """Return the rows of all queries, sorted, in one job each."""
    return [sorted(map(str, session.sql(query).collect())) for query in QUERIES]


@pytest.fixture(scope="module")
def expected(own: SparkSession) -> list[list[str]]:
    return rows_of(own)


def together(*cases: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {key: value for of in cases for case in of.values() for key, value in case.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "settings",
    [
        together(DEPLOYED, OF_HADOOP),
        {k: v for k, v in together(OF_SQL, ONE_BOUND).items() if k < "spark.sql.j"},
        {k: v for k, v in together(OF_SQL).items() if k >= "spark.sql.j"},
    ],
    ids=["deployment", "tuning, a to i", "tuning, j to z"],
)
def test_settings_that_do_not_count_change_no_row(
    own: SparkSession, expected: list[list[str]], settings: Mapping[str, str]
) -> None:
    """With many settings at other values all queries have the same rows and identities."""
    before = [identify(own.sql(query)).components for query in QUERIES[1:]]
    with configured(own, settings):
        assert rows_of(own) == expected
        assert [identify(own.sql(query)).components for query in QUERIES[1:]] == before


@pytest.mark.soak
@pytest.mark.parametrize(("name", "case"), every(DEPLOYMENT, DEPLOYED))
@pytest.mark.timeout(600)
def test_deployment_changes_no_row(
    own: SparkSession, expected: list[list[str]], name: str, case: Mapping[str, str]
) -> None:
    """One by one."""
    alone(own, expected, name, case)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "case"), every(TUNING, OF_SQL))
def test_tuning_changes_no_row(
    own: SparkSession, expected: list[list[str]], name: str, case: Mapping[str, str]
) -> None:
    """One by one."""
    alone(own, expected, name, case)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "case"), every(HADOOP, OF_HADOOP))
def test_hadoops_deployment_changes_no_row(
    own: SparkSession, expected: list[list[str]], name: str, case: Mapping[str, str]
) -> None:
    """One by one."""
    alone(own, expected, name, case)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "case"), every(WITHOUT_FUNCTIONS, BATCHES))
def test_batches_change_no_row_without_functions(
    own: SparkSession, expected: list[list[str]], name: str, case: Mapping[str, str]
) -> None:
    """One by one."""
    alone(own, expected, name, case)


def alone(
    session: SparkSession, expected: list[list[str]], name: str, case: Mapping[str, str]
) -> None:
    with configured(session, case):
        assert rows_of(session) == expected


def test_each_case_is_what_it_says(own: SparkSession) -> None:
    """Each case changes a setting of its entry, and all settings of the cases are harmless."""
    for cases in (DEPLOYED, OF_SQL, OF_HADOOP):
        for name, case in cases.items():
            for key, value in case.items():
                assert key.removeprefix("spark.hadoop.").startswith(name), key
                assert is_harmless(key), key
                assert own.conf.getAll.get(key) != value, key


@pytest.mark.parametrize("key", COUNTED)
def test_all_other_settings_count(own: SparkSession, key: str) -> None:
    """Whatever their prefix, unknown ones too."""
    query = QUERIES[1]
    before = identify(own.sql(query)).components
    with configured(own, {key: COUNTED[key]}):
        after = identify(own.sql(query)).components
    assert {aspect for aspect in before if before[aspect] != after[aspect]} == {"settings"}
    assert identify(own.sql(query)).components == before


def test_every_setting_of_spark_is_counted_or_listed(own: SparkSession) -> None:
    """Of all settings that Spark SQL knows, those count that are not on a list."""
    jvm = Jvm(own.sparkContext)
    java_session = cast("Any", own)._jsparkSession
    conf = java_session.sessionState().conf()
    listed = tuple(one.name for one in (*TUNING, *DEPLOYMENT, *WITHOUT_FUNCTIONS))
    entries = jvm.module("org.apache.spark.sql.internal.SQLConf").getConfigEntries()
    keys = sorted({str(entry.key()) for entry in entries.toArray()})
    unlisted = [
        k for k in keys if not any(k == n or (n[-1] == "." and k.startswith(n)) for n in listed)
    ]
    assert len(unlisted) > len(keys) / 3
    assert [key for key in unlisted if is_harmless(key)] == []
    before = settings_digest(jvm, own.range(1))
    for key in (
        "spark.sql.ansi.enabled",
        "spark.sql.crossJoin.enabled",
        "spark.sql.mapKeyDedupPolicy",
    ):
        assert key in unlisted
        default = str(conf.getConfString(key))
        with configured(
            own, {key: "LAST_WIN" if key.endswith("Policy") else str(default != "true").lower()}
        ):
            assert settings_digest(jvm, own.range(1)) != before, key


def test_a_setting_at_its_default_is_no_setting(own: SparkSession) -> None:
    """Set to the default, or not set: the same; set in Hadoop's way, too."""
    before = identify(own.sql(QUERIES[1])).components
    defaults = {"spark.sql.crossJoin.enabled": "true", "spark.sql.mapKeyDedupPolicy": "EXCEPTION"}
    with configured(own, defaults):
        assert identify(own.sql(QUERIES[1])).components == before


def test_hadoops_own_configuration_counts(own: SparkSession) -> None:
    """A change while the application runs counts, unless it is Hadoop's default or listed."""
    hadoop = cast("Any", own.sparkContext)._jsc.hadoopConfiguration()
    before = identify(own.sql(QUERIES[1])).components
    for key, value, counts in (
        ("orc.force.positional.evolution", "true", True),
        ("fs.s3a.connection.maximum", "7", False),
        ("mapreduce.map.sort.spill.percent", "0.80", False),
    ):
        old = hadoop.get(key)
        hadoop.set(key, value)
        try:
            assert (identify(own.sql(QUERIES[1])).components != before) == counts, key
        finally:
            hadoop.unset(key) if old is None else hadoop.set(key, old)


def test_batches_count_where_a_function_runs(own: SparkSession) -> None:
    """A Python function may see how rows are cut into batches; nothing else does."""
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    plain, function = own.table("parquet").select("id"), own.sql(QUERIES[0])
    before = identify(plain).components, identify(function).components
    with configured(own, {"spark.sql.execution.arrow.maxRecordsPerBatch": "7"}):
        assert identify(plain).components == before[0]
        assert identify(function).components != before[1]


UPPER = "SELECT upper(s) AS u FROM parquet"


@pytest.mark.parametrize(
    ("kind", "other"), [("java.util.Locale", "tr"), ("java.util.TimeZone", "Asia/Tokyo")]
)
def test_locale_and_zone_of_the_jvm_count(
    own: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str, other: str
) -> None:
    """An application whose JVM has another default locale or zone is told apart."""
    jvm: Any = own.sparkContext._jvm
    before = identify(own.sql(UPPER)).components
    monkeypatch.delitem(settings_module._PLACES, own.sparkContext)
    java_class = getattr(jvm, kind)
    old = java_class.getDefault()
    new = java_class.forLanguageTag(other) if "Locale" in kind else java_class.getTimeZone(other)
    try:
        java_class.setDefault(new)
        after = identify(own.sql(UPPER)).components
    finally:
        java_class.setDefault(old)
        settings_module._PLACES.pop(own.sparkContext, None)
    assert {aspect for aspect in before if before[aspect] != after[aspect]} == {"settings"}
    assert identify(own.sql(UPPER)).components == before


def test_zone_of_workers_counts_where_a_function_runs(
    own: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python function sees the zone of its process; other plans do not."""
    queries = [own.sql(UPPER), own.sql(QUERIES[0])]
    before = [identify(df).components for df in queries]
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        after = [identify(df).components for df in queries]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert after[0] == before[0]
    changed = {aspect for aspect in before[1] if before[1][aspect] != after[1][aspect]}
    assert changed == {"settings"}
