"""Appends values to a walk: literals, and rows, arrays and maps in Spark's own forms."""

from typing import TYPE_CHECKING, Any

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, items
from durable_shuffle.jobs.identity.jvm.document import ARRAY_DATA, MAP_DATA, ROW, is_object

if TYPE_CHECKING:
    from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk

_UNSAFE = "org.apache.spark.sql.catalyst.expressions.Unsafe"
_FIELDS = {
    "org.apache.spark.ml.linalg.DenseMatrix": ("numRows", "numCols", "values", "isTransposed"),
    "org.apache.spark.sql.catalyst.expressions.GenericInternalRow": ("values",),
    "org.apache.spark.sql.catalyst.util.GenericArrayData": ("array",),
    "org.apache.spark.sql.catalyst.util.ArrayBasedMapData": ("keyArray", "valueArray"),
}
"""Class -> the fields that hold all of its value."""
_HASH_MAP = "org.apache.spark.util.collection.OpenHashMap"


def literal(walk: "CatalystWalk", obj: Any) -> None:
    data_type = obj.dataType()
    walk.tokens.append("literal")
    walk.visit(data_type)
    _typed(walk, obj.value(), data_type)


def _typed(walk: "CatalystWalk", value: Any, data_type: Any) -> None:
    """Append the tokens of a value of a known type."""
    if not is_object(value):
        walk.visit(value)
    elif walk.jvm.is_a(value, ARRAY_DATA):
        element_type = data_type.elementType()
        _elements(walk, value.toObjectArray(element_type), element_type)
    elif walk.jvm.is_a(value, MAP_DATA):
        keys, values = value.keyArray(), value.valueArray()
        _elements(walk, keys.toObjectArray(data_type.keyType()), data_type.keyType())
        value_type = data_type.valueType()
        _elements(walk, values.toObjectArray(value_type), value_type)
    elif walk.jvm.is_a(value, ROW):
        types = [field.dataType() for field in data_type.fields()]
        walk.tokens.append(f"row {len(types)}")
        for element, its_type in zip(items(value.toSeq(data_type)), types, strict=True):
            _typed(walk, element, its_type)
    else:
        walk.visit(value)


def untyped(walk: "CatalystWalk", value: Any, name: str) -> bool:
    """Append the tokens of a value whose type is not known; return False if it cannot be read.

    Args:
        name: the value's full class name.
    """
    if name == "org.apache.spark.unsafe.types.UTF8String":
        walk.visit(bytes(value.getBytes()))
    elif name == "org.apache.spark.unsafe.types.VariantVal":
        walk.tokens.append("variant")
        walk.visit(bytes(value.getValue()))
        walk.visit(bytes(value.getMetadata()))
    elif name.startswith(_UNSAFE):  # rows, arrays and maps in Spark's binary form
        try:
            walk.tokens.append(name)
            walk.visit(bytes(value.getBytes()))
        except JVM_ERRORS:
            return False
    elif name in _FIELDS:
        walk.tokens.append(name)
        for field in _FIELDS[name]:
            walk.visit(walk.jvm.field(value, field))
    elif name.startswith(_HASH_MAP):
        walk.unordered(name, items(value.toSeq()))
    else:
        return False
    return True


def _elements(walk: "CatalystWalk", values: Any, element_type: Any) -> None:
    walk.tokens.append(f"values {len(values)}")
    for value in values:
        _typed(walk, value, element_type)
