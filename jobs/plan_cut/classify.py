"""Decides which exchanges can be durable."""

import json
from typing import Any

from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.column_types import check_columns
from durable_shuffle.jobs.identity.plan.jvm import simple_name
from durable_shuffle.jobs.plan_cut.cuts import Exchange, Kind
from durable_shuffle.jobs.plan_cut.tree import Node
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.rows.partitioner import check_partition_count

_KINDS: dict[str, Kind] = {
    "HashPartitioning": "hash",
    "SinglePartition": "single",
    "RoundRobinPartitioning": "round_robin",
    "RangePartitioning": "range",
}


def classify(node: Node) -> Exchange | str:
    """Return the description of a shuffle exchange, or why Spark must run it itself."""
    name = simple_name(str(node.partitioning.getClass().getName()))
    kind = _KINDS.get(name)
    if kind is None:
        return f"{name}: this partitioning is not known"
    partitions = int(node.partitioning.numPartitions())
    try:
        check_columns(schema_of(node.plan))
        check_partition_count(partitions)
    except InvalidInputError as error:
        return f"{name}: {error}"
    return Exchange(kind, partitions, "REPARTITION_BY_NUM" in str(node.plan.shuffleOrigin()))


def storable(node: Node) -> bool:
    """Return True if all column types of an operator's rows can be stored."""
    try:
        check_columns(schema_of(node.plan))
    except InvalidInputError:
        return False
    return True


def schema_of(plan: Any) -> StructType:
    """Return the schema of a physical plan's rows; names may repeat."""
    return StructType.fromJson(json.loads(str(plan.schema().json())))


def union_is_zipped(node: Node) -> bool:
    """Return True if a union joins its children's partitions one to one."""
    name = simple_name(str(node.partitioning.getClass().getName()))
    return name != "UnknownPartitioning"
