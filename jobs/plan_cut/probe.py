"""Does this Spark have the planner internals that cutting a query uses? Asked once per session.

PySpark 4.0 to 4.3 have them. What is looked up here is all that this package and
`jobs/engine/catalyst.py` call by constructor or by name; another Spark gets one error that says
what it lacks, before anything is planned or written.
"""

import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from durable_shuffle.serialization.errors import IncompatibleError

_SQL = "org.apache.spark.sql."
_CONSTRUCTORS: dict[str, tuple[int, ...]] = {
    "execution.LogicalRDD": (9, 10),
    "execution.RDDScanExec": (6,),
    "execution.exchange.ReusedExchangeExec": (2,),
    "catalyst.plans.physical.HashPartitioning": (2,),
    "catalyst.plans.physical.RangePartitioning": (2,),
    "catalyst.plans.physical.UnknownPartitioning": (1,),
    "catalyst.expressions.UnsafeRow": (1,),
    "catalyst.expressions.CreateNamedStruct": (1,),
    "catalyst.expressions.GenericInternalRow": (1,),
    "catalyst.expressions.AttributeReference": (6,),
    "catalyst.expressions.ExprId": (2,),
    "catalyst.plans.logical.ReturnAnswer": (1,),
}
"""Class -> numbers of arguments with which it can be made here."""
_METHODS: dict[str, tuple[str, ...]] = {
    "classic.Dataset": ("ofRows",),
    "classic.SparkSession": ("cloneSession", "getActiveSession", "setActiveSession"),
    "execution.SparkPlan": ("execute", "withNewChildren", "id", "subqueries", "outputPartitioning"),
    "execution.exchange.ShuffleExchangeExec": ("shuffleOrigin", "outputPartitioning"),
    "catalyst.plans.physical.HashPartitioning": ("partitionIdExpression", "expressions"),
    "catalyst.plans.physical.RangePartitioning": ("ordering",),
    "catalyst.trees.TreeNode": ("containsPattern", "fastEquals", "makeCopy"),
    "catalyst.rules.RuleExecutor$Batch": ("strategy", "rules"),
    "catalyst.optimizer.Optimizer": ("batches",),
    "catalyst.optimizer.RewriteDistinctAggregates$": ("rewrite",),
    "execution.QueryExecution": ("withCachedData", "planner", "preparations"),
    "execution.QueryExecution$": ("prepareForExecution",),
}
_FIELDS = {
    "execution.SubqueryExec": "child",
    "execution.SubqueryBroadcastExec": "child",
}


def missing_internals(spark: SparkSession) -> list[str]:
    """Return what this Spark lacks, in words; empty if queries can be cut."""
    jvm: Any = spark._jvm  # noqa: SLF001
    found: list[str] = []
    classes: dict[str, Any] = {}
    for name in {*_CONSTRUCTORS, *_METHODS, *_FIELDS}:
        try:
            classes[name] = jvm.java.lang.Class.forName(_SQL + name)
        except Py4JError:
            found.append(f"no class {_SQL}{name}")
    for name, arities in _CONSTRUCTORS.items():
        if name in classes:
            has = sorted({int(c.getParameterCount()) for c in classes[name].getConstructors()})
            if not set(arities) & set(has):
                found.append(f"{name} takes {has} arguments, expected one of {list(arities)}")
    present = [name for name in _METHODS if name in classes]
    for name, known in zip(present, _method_names(jvm, [classes[n] for n in present]), strict=True):
        found += [f"{name} has no {one}()" for one in _METHODS[name] if one not in known]
    for name, field in _FIELDS.items():
        if name in classes:
            fields = {str(f.getName()) for f in classes[name].getDeclaredFields()}
            if field not in fields:
                found.append(f"{name} has no field {field}")
    return sorted(found)


def _method_names(jvm: Any, classes: list[Any]) -> list[set[str]]:
    """Return the names of each class's methods, in one reply.

    There are thousands of methods, a call for each takes a round trip; and each large reply waits
    40 ms for an acknowledgement that the network holds back.
    """
    if not classes:
        return []
    arrays = jvm.java.util.ArrayList()
    for one in classes:
        arrays.add(one.getMethods())
    text = str(jvm.org.apache.commons.lang3.ArrayUtils.toString(arrays.toArray()))
    return [set(re.findall(r"([\w$]+)\(", of_one)) for of_one in text.split("},{")]


def check_internals(spark: SparkSession) -> None:
    """Refuse a Spark whose plans cannot be cut.

    Raises:
        IncompatibleError: names what is missing and the versions that are known to work.
    """
    missing = missing_internals(spark)
    if missing:
        raise IncompatibleError(
            f"query() does not know the plans of Spark {spark.version}: {'; '.join(missing)}; "
            "PySpark 4.0 to 4.3 are known, repartition() may work on others"
        )
