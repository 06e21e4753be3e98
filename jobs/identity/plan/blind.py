"""Logical operators that find columns by id, so that no row depends on the names of columns.

Names that Spark made may be left out at these operators alone. At any other one, such as those that
run functions over whole rows, the names of all columns of its inputs and its output count.
"""

from durable_shuffle.jobs.identity.exclusions import Excluded

_BY_ID = "its expressions hold the ids of columns"
_BY_PLACE = "it takes whole rows, or columns by their place"

BLIND = (
    Excluded("Aggregate", _BY_ID),
    Excluded("CTERelationDef", _BY_PLACE),
    Excluded("CTERelationRef", _BY_PLACE),
    Excluded("Deduplicate", _BY_ID),
    Excluded("Distinct", _BY_PLACE),
    Excluded("Except", _BY_PLACE),
    Excluded("Filter", _BY_ID),
    Excluded("Generate", _BY_ID),
    Excluded("GlobalLimit", _BY_PLACE),
    Excluded("Intersect", _BY_PLACE),
    Excluded("Join", _BY_ID),
    Excluded("LocalLimit", _BY_PLACE),
    Excluded("Offset", _BY_PLACE),
    Excluded("Project", _BY_ID),
    Excluded("Repartition", _BY_PLACE),
    Excluded("RepartitionByExpression", _BY_ID),
    Excluded("ResolvedHint", _BY_PLACE),
    Excluded("Sample", _BY_PLACE),
    Excluded("Sort", _BY_ID),
    Excluded("SubqueryAlias", "it only names its input"),
    Excluded("Union", _BY_PLACE),
    Excluded("View", "it only names its input"),
    Excluded("Window", _BY_ID),
    Excluded("WithCTE", _BY_PLACE),
)
