"""Checks, once per application, that Spark has the planner internals that cutting needs.

PySpark 3.5 and 4.0 to 4.3 have them. The tables list the constructors, methods and fields that this
folder and `jobs/engine/catalyst.py` use. If any is missing, one error names them all before
anything is written.
"""

import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS
from durable_shuffle.jobs.in_one_call import in_one_call, list_in
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import arities, sql_class_name
from durable_shuffle.serialization.errors import IncompatibleError

_SQL = "org.apache.spark.sql."
_CONSTRUCTORS: dict[str, tuple[int, ...]] = {
    "execution.LogicalRDD": (8, 9, 10),
    "execution.RDDScanExec": (5, 6),
    "execution.adaptive.LogicalQueryStage": (2,),
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
"""Class -> the numbers of constructor arguments that this package can pass."""
_METHODS: dict[str, tuple[str, ...]] = {
    "Dataset": ("ofRows",),
    "SparkSession": ("cloneSession", "getActiveSession", "setActiveSession"),
    "execution.SparkPlan": (
        *("execute", "withNewChildren", "id", "subqueries", "outputPartitioning", "logicalLink"),
    ),
    "catalyst.analysis.UpdateAttributeNullability$": ("apply",),
    "catalyst.optimizer.PropagateEmptyRelation$": ("apply",),
    "catalyst.plans.logical.LocalRelation$": ("apply",),
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


_MISSING: WeakKeyDictionary[SparkContext, list[str]] = WeakKeyDictionary()
"""Application -> what `missing_internals` returned."""


def missing_internals(spark: SparkSession) -> list[str]:
    """Return one sentence per thing that this Spark lacks; empty if queries can be cut."""
    jvm: Any = classes_of(spark)
    missing: list[str] = []
    names = sorted({*_CONSTRUCTORS, *_METHODS, *_FIELDS})
    try:
        found = in_one_call(jvm, lambda jvm: tuple(_class(jvm, n) for n in names), fetch=False)
        classes = dict(zip(names, found, strict=True))
    except JVM_ERRORS:  # at least one is not there
        classes = {}
        for name in names:
            try:
                classes[name] = _class(jvm, name)
            except JVM_ERRORS:
                missing.append(f"no class {_full_name(name)}")
    made = [name for name in _CONSTRUCTORS if name in classes]
    constructors = _listed(jvm, [classes[name] for name in made], "getConstructors")
    for name, text in zip(made, constructors, strict=True):
        wanted, has = _CONSTRUCTORS[name], set(arities(text))
        if not set(wanted) & has:
            missing.append(f"{name} takes {sorted(has)} arguments, expected one of {list(wanted)}")
    present = [name for name in _METHODS if name in classes]
    methods = _listed(jvm, [classes[name] for name in present], "getMethods")
    for name, text in zip(present, methods, strict=True):
        known = set(re.findall(r"([\w$]+)\(", text))
        missing += [f"{name} has no {method}()" for method in _METHODS[name] if method not in known]
    held = [name for name in _FIELDS if name in classes]
    fields = _listed(jvm, [classes[name] for name in held], "getDeclaredFields")
    for name, text in zip(held, fields, strict=True):
        if not re.search(rf"\.{_FIELDS[name]}\b", text):
            missing.append(f"{name} has no field {_FIELDS[name]}")
    return sorted(missing)


def _full_name(name: str) -> str:
    return sql_class_name(name) if name in ("Dataset", "SparkSession") else _SQL + name


def _class(jvm: Any, name: str) -> Any:
    return getattr(jvm, "java.lang.Class").forName(_full_name(name))


def _listed(jvm: Any, classes: Sequence[Any], what: str) -> list[str]:
    """Return the methods, constructors or fields of each class as text, with one call to the JVM.

    Args:
        what: the method of a class that lists them.
    """
    if not classes:
        return []

    def text(jvm: Any, *classes: Any) -> Any:
        listed = list_in(jvm, [getattr(one, what)() for one in classes])
        return getattr(jvm, "org.apache.commons.lang3.ArrayUtils").toString(listed.toArray())

    return str(in_one_call(jvm, text, *classes)).split("},{")


def check_internals(spark: SparkSession) -> None:
    """Refuse a Spark whose plans cannot be cut. Looks once per application.

    Raises:
        IncompatibleError: names what is missing and the versions that work.
    """
    context = spark.sparkContext
    missing = _MISSING.get(context)
    if missing is None:
        missing = _MISSING[context] = missing_internals(spark)
    if missing:
        raise IncompatibleError(
            f"query() does not know the plans of Spark {spark.version}: {'; '.join(missing)}; "
            "PySpark 3.5 and 4.0 to 4.3 are known, repartition() may work on others"
        )
