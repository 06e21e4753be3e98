"""External data sources in a plan: everything that can be known of them, whether it is vouched for.

JDBC and other V1 sources, DataSource V2 tables, Hive tables: what they hold now cannot be told, so
they are unresolved. Which of them is read, and what is asked of it, can be told and counts: with
`version=` it is all that keeps two inputs apart.
"""

import re
from collections.abc import Mapping
from typing import Any

from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.jvm import items, simple_name

# who may read does not decide what is read; rotated credentials must not cost a fresh stage
_CREDENTIALS = ("secret", "password", "token", "credential", "access.key", "account.key", ".sas")
_IN_URL = re.compile(
    r"(?i)(?<=[?&;,])[^=&;,?]*(?:secret|password|passwd|pwd|token|credential)[^=&;,?]*=[^&;,]*"
)
_USER_INFO = re.compile(r"(?<=//)([^/@:]*):[^/@]*@")
_V2 = "org.apache.spark.sql.connector.read."


def without_credentials(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Options of a reader that decide what is read, sorted by name."""
    kept = {
        key: _USER_INFO.sub(r"\1@", _IN_URL.sub("", value))
        for key, value in options.items()
        if not any(word in key.lower() for word in _CREDENTIALS)
    }
    return sorted(kept.items())


class PlanSources:
    """Appends what is known of sources to the tokens of a walk, and gives up on the rest."""

    def __init__(self, walk: CatalystWalk) -> None:
        self._walk = walk
        self._jvm = walk.jvm
        walk.handlers["CaseInsensitiveMap"] = lambda options, _: self.options(
            self._jvm.entries(options)
        )

    def options(self, options: Mapping[str, str]) -> None:
        """Reader options; they go into a digest only, and credentials not even there."""
        self._walk.tokens.append(repr(without_credentials(options)))

    def relation(self, relation: Any) -> None:
        """A relation of the V1 API that reads no files of Spark's own."""
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
        """A table of the V2 API."""
        name, walk = self._jvm.class_name(table), self._walk
        walk.origin(table)
        walk.tokens += [name, str(table.name())]
        for ask in ("version", "id"):  # since Spark 4.1
            if self._has(table, ask):
                walk.tokens.append(f"{ask} {getattr(table, ask)()}")
        self.options({str(k): str(v) for k, v in dict(table.properties()).items()})
        walk.give_up(f"the data source {simple_name(name)} ({table.name()})")

    def relation_v2(self, node: Any) -> None:
        """A scan of a V2 table as the query names it."""
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
        """A scan of the V2 API with what was pushed into it, as far as it tells."""
        self._walk.origin(scan)
        self._walk.tokens += [
            self._jvm.class_name(scan),
            re.sub(r"@[0-9a-f]+|#\d+L?", "", str(scan.description())),
            str(scan.readSchema().json()),
        ]

    def hive_table(self, table: Any) -> None:
        """A table of Hive, by its name and place."""
        storage = table.storage()
        self._walk.tokens += [
            str(table.identifier().toString()),
            str(storage.locationUri().toString()),
            str(table.schema().json()),
        ]
        self._walk.give_up(f"the Hive table {table.identifier().toString()}")

    def files_of(self, index: Any) -> None:
        """A listing of files by something that is not Spark."""
        self._walk.origin(index)
        self._walk.tokens += sorted(str(path.toString()) for path in items(index.rootPaths()))
        self._walk.tokens += sorted(map(str, index.inputFiles()))

    def _has(self, obj: Any, method: str) -> bool:
        methods = obj.getClass().getMethods()
        return any(str(one.getName()) == method for one in methods)
