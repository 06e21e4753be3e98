"""Spark's own SQL test files, statement by statement: in plain Spark and through `transparent()`.

The files are read from the jar of Spark's tests, which `scripts/test_jars.py` fetches. A file runs
whole, queries and commands, in plain Spark, and then whole inside the block, each in a new session
and an empty catalog.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fetched_jars import fetched
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle

_RESULTS, _INPUTS = "sql-tests/results/", "sql-tests/inputs/"
_OUTPUT = re.compile(r"^-- !query (?:schema|output|analysis)", re.M)
_CREATED = re.compile(r"Created Time: [^\\]*|(?<=col_name='Created Time', data_type=')[^']*")
_TABLES = {
    "aggtest": ("agg", "a INT, b FLOAT"),
    "onek": ("onek", ""),
    "tenk1": ("tenk", ""),
}
_NUMBERS = (
    *("unique1", "unique2", "two", "four", "ten", "twenty", "hundred", "thousand", "twothousand"),
    *("fivethous", "tenthous", "odd", "even"),
)
_WISCONSIN = ", ".join(
    [f"{name} INT" for name in _NUMBERS]
    + [f"{name} STRING" for name in ("stringu1", "stringu2", "string4")]
)
_VIEWS = (
    "testdata AS SELECT CAST(id AS INT) AS key, CAST(id AS STRING) AS value FROM range(1, 101)",
    "arraydata AS SELECT * FROM VALUES (array(1, 2, 3), array(array(1, 2, 3))), "
    "(array(2, 3, 4), array(array(2, 3, 4))) AS t(arraycol, nestedarraycol)",
    "mapdata AS SELECT * FROM VALUES (map(1, 'a1', 2, 'b1', 3, 'c1')), (map(1, 'a2')) AS t(mapcol)",
)


def archive() -> zipfile.ZipFile:
    """Return the jar. Skips the test if it was not fetched; in CI that is a failure."""
    return zipfile.ZipFile(fetched("SPARK_TESTS"))


def names(jar: zipfile.ZipFile) -> list[str]:
    """Return the names of all files, such as "group-by", sorted."""
    found = [n for n in jar.namelist() if n.startswith(_RESULTS) and n.endswith(".sql.out")]
    return sorted(name.removeprefix(_RESULTS).removesuffix(".sql.out") for name in found)


@dataclass
class Suite:
    """Runs files; collects what differs from plain Spark."""

    spark: SparkSession
    root: str
    folder: Path
    jar: zipfile.ZipFile = field(default_factory=archive)
    different: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    """Statements, those that stored something, and stages by what was done."""
    _plains: dict[str, list[object]] = field(default_factory=dict)
    """What the statements of a file come to in plain Spark."""

    def run(self, name: str, *, most: int = 1_000_000) -> None:
        """Run one file, up to `most` statements that store something."""
        texts = list(_statements(self.jar, name))
        ours = self._inside(name, texts, most)
        texts = texts[: len(ours)]
        if len(self._plains.get(name, ())) < len(texts):
            self._plains[name] = self._plain(name, texts)
        plain = self._plains[name]
        differing = [at for at, found in enumerate(ours) if found != plain[at]]
        if differing:  # rows that change from run to run prove nothing
            again = self._plain(name, texts)
            differing = [at for at in differing if plain[at] == again[at]]
        self.different += [
            f"{name}[{at}]: {texts[at][:300]}\n"
            f"  plain {plain[at]!s:.300}\n  ours  {ours[at]!s:.300}"
            for at in differing
        ]

    def _inside(self, name: str, texts: list[str], most: int) -> list[object]:
        session = self._session(name)
        found: list[object] = []
        stored = 0
        with DurableShuffle(session, self.root, job=re.sub(r"\W+", "-", name)) as shuffle:
            for text in texts:
                before = len(shuffle.report().stages)
                with shuffle.transparent():
                    found.append(_answer(session, text))
                stored += len(shuffle.report().stages) > before
                if stored >= most:
                    break
            self.tally.update(stage.action for stage in shuffle.report().stages)
        self.tally["statements"] += len(found)
        self.tally["storing"] += stored
        return found

    def _plain(self, name: str, texts: list[str]) -> list[object]:
        session = self._session(name)
        return [_answer(session, text) for text in texts]

    def _session(self, name: str) -> SparkSession:
        session = self.spark.newSession()
        self._drop_all(session)
        # below a folder of its own: another process here may run the suite, too
        session.sql(f"CREATE DATABASE suite LOCATION '{self.folder / 'suite.db'}'")
        session.sql("USE suite")
        session.conf.set("spark.sql.ansi.enabled", str(not name.startswith("nonansi")).lower())
        session.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        for key, value in _settings(self.jar, name):
            _outcome(lambda key=key, value=value: session.conf.set(key, value))  # type: ignore[misc]
        for view in _VIEWS:
            session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view}")
        for table, (file, schema) in _TABLES.items():
            path = self.folder / f"{file}.data"
            if not path.exists():
                path.write_bytes(self.jar.read(f"test-data/postgresql/{file}.data"))
            rows = session.read.schema(schema or _WISCONSIN).option("delimiter", "\t")
            rows.csv(str(path)).createOrReplaceTempView(table)
        session.udf.register("udf", lambda x: None if x is None else str(x), "string")
        return session

    def _drop_all(self, session: SparkSession) -> None:
        for (database,) in session.sql("SHOW DATABASES").collect():
            if database != "default":
                session.sql(f"DROP DATABASE `{database}` CASCADE")
        for view in session.sql("SHOW VIEWS IN global_temp").collect():
            if view.namespace == "global_temp":
                session.sql(f"DROP VIEW global_temp.`{view.viewName}`")


def _statements(jar: zipfile.ZipFile, name: str) -> Iterator[str]:
    text = jar.read(f"{_RESULTS}{name}.sql.out").decode()
    for part in re.split(r"^-- !query\n", text, flags=re.M)[1:]:
        yield _OUTPUT.split(part, maxsplit=1)[0].strip()


def _settings(jar: zipfile.ZipFile, name: str) -> Iterator[tuple[str, str]]:
    try:
        text = jar.read(f"{_INPUTS}{name}.sql").decode()
    except KeyError:
        return
    for pairs in re.findall(r"^--SET (.*)", text, flags=re.M):
        for pair in pairs.split(","):
            key, _, value = pair.partition("=")
            yield key.strip(), value.strip()


def _answer(session: SparkSession, text: str) -> object:
    return _outcome(lambda: session.sql(text).collect())


def _outcome(act: Callable[[], object]) -> object:
    """Return the rows as sorted text, or the condition of the error."""
    try:
        rows = act()
    except PySparkException as error:
        return error.getCondition() or type(error).__name__
    except Exception as error:  # noqa: BLE001 - errors of the JVM, and of functions
        found = re.search(r"\[([A-Z_.0-9]+)\]", str(error))
        return found[1] if found else type(error).__name__
    if not isinstance(rows, list):
        return None
    return sorted(_CREATED.sub("", repr(row)) for row in rows)
