"""Sources whose rows cannot be known: JDBC, other V1 and V2 sources, Hive's own formats, Hudi.

They are unresolved, each with the name under which its user knows it. What the plan shows of them
(table, options, pushed filters) is appended to the tokens; credentials are left out.
"""

import re
from collections.abc import Mapping
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import Jvm, items, simple_name
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.tables import delta
from durable_shuffle.jobs.spark_versions import argument_names

# credentials do not decide rows, so rotating them must not cause a fresh stage
_CREDENTIALS = ("secret", "password", "token", "credential", "access.key", "account.key", ".sas")
_IN_URL = re.compile(
    r"(?i)(?<=[?&;,])[^=&;,?]*(?:secret|password|passwd|pwd|token|credential)[^=&;,?]*=[^&;,]*"
)
_USER_INFO = re.compile(r"(?<=//)([^/@:]*):[^/@]*@")
_JDBC = "org.apache.spark.sql.execution.datasources.jdbc.JDBCRelation"
_HUDI = "org.apache.hudi."
_CHANGE_LOG = "org.apache.iceberg.spark.source.SparkChangelogTable"
_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
_VOUCH_ROWS = "give version= for the rows that it holds now; nothing else tells them"
_SHOWN = 60
"""Characters of a query or a path that a message shows."""


def without_credentials(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a reader's options without credentials, sorted by name."""
    kept = {
        key: _USER_INFO.sub(r"\1@", _IN_URL.sub("", value))
        for key, value in options.items()
        if not any(word in key.lower() for word in _CREDENTIALS)
    }
    return sorted(kept.items())


class Sources:
    """Appends sources to the tokens of a walk, and gives them up by name."""

    def __init__(self, walk: CatalystWalk) -> None:
        self._walk = walk
        self._jvm: Jvm = walk.jvm

    def options(self, options: Mapping[str, str]) -> None:
        """Append reader options. Only their digest is stored; credentials are left out of it."""
        self._walk.tokens.append(repr(without_credentials(options)))

    def relation(self, relation: Any) -> None:
        """Append a relation of the V1 API that is not one of Spark's file relations."""
        name = self._jvm.class_name(relation)
        self._walk.tokens += [name, str(relation.schema().json())]
        if name == _JDBC:
            options = relation.jdbcOptions()
            self.options(self._jvm.entries(options.parameters()))
            self._walk.visit(relation.parts())
            what = _shown(str(options.tableOrQuery()))
            self._walk.give_up(f"the JDBC table {what}", mend=_VOUCH_ROWS)
        elif name == delta.CHANGE_FEED:
            what = "the change data feed of a Delta table"
            self._walk.give_up_on(what, relation, mend="read the table itself, or give version=")
        elif self._jvm.is_a(relation, "scala.Product"):  # its options are its arguments
            self._walk.tokens.append(f"arguments {relation.productArity()}")
            for i in range(relation.productArity()):
                self._walk.visit(relation.productElement(i))
            self._walk.give_up(_named(name))
        else:
            self._walk.give_up_on(_named(name), relation)

    def table(self, table: Any) -> None:
        """Append a table of the V2 API."""
        name, walk = self._jvm.class_name(table), self._walk
        walk.origin(table)
        walk.tokens += [name, str(table.name())]
        methods = {str(method.getName()) for method in table.getClass().getMethods()}
        for ask in ("version", "id"):  # since Spark 4.1
            if ask in methods:
                walk.tokens.append(f"{ask} {getattr(table, ask)()}")
        self.options({str(k): str(v) for k, v in dict(table.properties()).items()})
        if name == _CHANGE_LOG:
            walk.give_up(f"the change log of the Iceberg table {table.name()}")
        elif name == _PYTHON:
            walk.give_up(f"the Python data source {table.name()}", mend=_VOUCH_ROWS)
        else:
            walk.give_up(f"{_named(name)} ({table.name()})")

    def use(self, node: Any) -> None:
        """Append how the query names a V2 table: options, catalog, identifier, time travel."""
        self.options({str(k).lower(): str(v) for k, v in dict(node.options()).items()})
        catalog, identifier = node.catalog(), node.identifier()
        self._walk.tokens += [
            str(catalog.get().name()) if catalog.isDefined() else "no catalog",
            str(identifier.get().toString()) if identifier.isDefined() else "no identifier",
        ]
        for i, name in enumerate(argument_names(self._jvm.root, node)):
            if name == "timeTravelSpec":
                self._walk.visit(node.productElement(i))

    def scan(self, scan: Any) -> None:
        """Append a scan of the V2 API, with what it reports about pushed filters and columns."""
        self._walk.origin(scan)
        self._walk.tokens += [
            self._jvm.class_name(scan),
            re.sub(r"@[0-9a-f]+|#\d+L?", "", str(scan.description())),
            str(scan.readSchema().json()),
        ]

    def hive_table(self, table: Any) -> None:
        """Append a table in one of Hive's own formats: name, location and schema."""
        storage = table.storage()
        name = str(table.identifier().toString())
        self._walk.tokens += [
            name,
            str(storage.locationUri().toString()),
            str(table.schema().json()),
        ]
        mend = "store it as Parquet or ORC, or give version="
        self._walk.give_up(f"the Hive table {name}, which Hive's own reader reads,", mend=mend)

    def files(self, index: Any) -> None:
        """Append the files of an index that is not known."""
        name = self._jvm.class_name(index)
        self._walk.origin(index)
        roots = sorted(str(path.toString()) for path in items(index.rootPaths()))
        self._walk.tokens += roots
        self._walk.tokens += sorted(map(str, index.inputFiles()))
        if name.startswith(_HUDI):
            self._walk.give_up(f"the Hudi table {_shown(', '.join(roots))}")
        else:
            self._walk.give_up(f"the files of {_shown(', '.join(roots))}, listed by {name},")


def _named(class_name: str) -> str:
    if class_name.startswith(_HUDI):
        return f"the Hudi source {simple_name(class_name)}"
    return f"the data source {simple_name(class_name)}"


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
