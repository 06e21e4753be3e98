"""External data sources in a plan: JDBC and other V1 sources, DataSource V2 tables, Hive tables.

Their current content cannot be known, so they are unresolved. But the plan shows which source it
reads and what it asks for, and this is part of the fingerprint: with `version=` it is all that
distinguishes two inputs.
"""

import re
from collections.abc import Mapping
from typing import Any

from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.jvm import items, simple_name

# credentials do not decide rows, so rotating them must not cause a fresh stage
_CREDENTIALS = ("secret", "password", "token", "credential", "access.key", "account.key", ".sas")
_IN_URL = re.compile(
    r"(?i)(?<=[?&;,])[^=&;,?]*(?:secret|password|passwd|pwd|token|credential)[^=&;,?]*=[^&;,]*"
)
_USER_INFO = re.compile(r"(?<=//)([^/@:]*):[^/@]*@")
_V2 = "org.apache.spark.sql.connector.read."


def without_credentials(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a reader's options without credentials, sorted by name."""
    kept = {
        key: _USER_INFO.sub(r"\1@", _IN_URL.sub("", value))
        for key, value in options.items()
        if not any(word in key.lower() for word in _CREDENTIALS)
    }
    return sorted(kept.items())


class PlanSources:
    """Appends what is known of sources to the tokens of a walk, and marks them as unresolved."""

    def __init__(self, walk: CatalystWalk) -> None:
        self._walk = walk
        self._jvm = walk.jvm
        walk.handlers["CaseInsensitiveMap"] = lambda options, _: self.options(
            self._jvm.entries(options)
        )

    def options(self, options: Mapping[str, str]) -> None:
        """Append reader options. Only their digest is stored; credentials are left out of it."""
        self._walk.tokens.append(repr(without_credentials(options)))

    def relation(self, relation: Any) -> None:
        """Append a relation of the V1 API that is not one of Spark's file relations."""
        name = self._jvm.class_name(relation)
        what = f"the data source {simple_name(name)}"
        self._walk.tokens += [name, str(relation.schema().json())]
        if name == "org.apache.spark.sql.execution.datasources.jdbc.JDBCRelation":
            self.options(self._jvm.entries(relation.jdbcOptions().parameters()))
            self._walk.visit(relation.parts())
            self._walk.give_up(what)
        elif self._jvm.is_a(relation, "scala.Product"):  # its options are its arguments
            self._walk.tokens.append(f"arguments {relation.productArity()}")
            for at in range(relation.productArity()):
                self._walk.visit(relation.productElement(at))
            self._walk.give_up(what)
        else:
            self._walk.give_up_on(what, relation)

    def table(self, table: Any) -> None:
        """Append a table of the V2 API."""
        name, walk = self._jvm.class_name(table), self._walk
        walk.origin(table)
        walk.tokens += [name, str(table.name())]
        for ask in ("version", "id"):  # since Spark 4.1
            if self._has(table, ask):
                walk.tokens.append(f"{ask} {getattr(table, ask)()}")
        self.options({str(k): str(v) for k, v in dict(table.properties()).items()})
        walk.give_up(f"the data source {simple_name(name)} ({table.name()})")

    def relation_v2(self, node: Any) -> None:
        """Append how the query names a V2 table: options, catalog, identifier, time travel."""
        self.options({str(k).lower(): str(v) for k, v in dict(node.options()).items()})
        catalog, identifier = node.catalog(), node.identifier()
        self._walk.tokens += [
            str(catalog.get().name()) if catalog.isDefined() else "no catalog",
            str(identifier.get().toString()) if identifier.isDefined() else "no identifier",
        ]
        for at in range(node.productArity()):
            if str(node.productElementName(at)) == "timeTravelSpec":
                self._walk.visit(node.productElement(at))

    def scan(self, scan: Any) -> None:
        """Append a scan of the V2 API, with what it reports about pushed filters and columns."""
        self._walk.origin(scan)
        self._walk.tokens += [
            self._jvm.class_name(scan),
            re.sub(r"@[0-9a-f]+|#\d+L?", "", str(scan.description())),
            str(scan.readSchema().json()),
        ]

    def hive_table(self, table: Any) -> None:
        """Append a Hive table: name, location and schema."""
        storage = table.storage()
        self._walk.tokens += [
            str(table.identifier().toString()),
            str(storage.locationUri().toString()),
            str(table.schema().json()),
        ]
        self._walk.give_up(f"the Hive table {table.identifier().toString()}")

    def files_of(self, index: Any) -> None:
        """Append the files of an index that is not one of Spark's own."""
        self._walk.origin(index)
        self._walk.tokens += sorted(str(path.toString()) for path in items(index.rootPaths()))
        self._walk.tokens += sorted(map(str, index.inputFiles()))

    def _has(self, obj: Any, method: str) -> bool:
        methods = obj.getClass().getMethods()
        return any(str(one.getName()) == method for one in methods)
