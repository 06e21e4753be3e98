"""Reads values in Catalyst's internal form exactly.

They are the values of literals. The optimizer also puts such values where the user wrote literals
(`IN` with many values, `PIVOT`), sometimes without their type.
"""

from typing import Any, Protocol

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError

from durable_shuffle.jobs.identity.plan.jvm import Jvm, items

_UNSAFE = "org.apache.spark.sql.catalyst.expressions.Unsafe"
_ARRAY = "org.apache.spark.sql.catalyst.util.ArrayData"
_MAP = "org.apache.spark.sql.catalyst.util.MapData"
_ROW = "org.apache.spark.sql.catalyst.InternalRow"


class Walk(Protocol):
    """The walk that collects the tokens."""

    jvm: Jvm
    tokens: list[str]

    def visit(self, value: Any) -> None:
        """Append the tokens of any other value."""


class CatalystValues:
    """Reads values into the tokens of a walk."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def typed(self, value: Any, data_type: Any) -> None:
        """Append the tokens of a value of a known type."""
        if not isinstance(value, JavaObject):
            self._walk.visit(value)
        elif self._is(value, _ARRAY):
            element_type = data_type.elementType()
            self._elements(value.toObjectArray(element_type), element_type)
        elif self._is(value, _MAP):
            keys, values = value.keyArray(), value.valueArray()
            self._elements(keys.toObjectArray(data_type.keyType()), data_type.keyType())
            value_type = data_type.valueType()
            self._elements(values.toObjectArray(value_type), value_type)
        elif self._is(value, _ROW):
            types = [field.dataType() for field in data_type.fields()]
            self._walk.tokens.append(f"row {len(types)}")
            for one, its_type in zip(items(value.toSeq(data_type)), types, strict=True):
                self.typed(one, its_type)
        else:
            self._walk.visit(value)

    def untyped(self, value: Any, name: str) -> bool:
        """Append the tokens of a value whose type is not known; return False if it cannot be read.

        Args:
            name: the value's full class name.
        """
        if name == "org.apache.spark.unsafe.types.UTF8String":
            self._walk.visit(bytes(value.getBytes()))
        elif name == "org.apache.spark.unsafe.types.VariantVal":
            self._walk.tokens.append("variant")
            self._walk.visit(bytes(value.getValue()))
            self._walk.visit(bytes(value.getMetadata()))
        elif name.startswith(_UNSAFE):  # rows, arrays and maps in Spark's binary form
            try:
                self._walk.tokens.append(name)
                self._walk.visit(bytes(value.getBytes()))
            except Py4JError:
                return False
        elif name == "org.apache.spark.sql.catalyst.expressions.GenericInternalRow":
            self._walk.tokens.append(name)
            self._walk.visit(self._walk.jvm.field(value, "values"))
        elif name == "org.apache.spark.sql.catalyst.util.GenericArrayData":
            self._walk.tokens.append(name)
            self._walk.visit(value.array())
        elif name == "org.apache.spark.sql.catalyst.util.ArrayBasedMapData":
            self._walk.tokens.append(name)
            self._walk.visit(value.keyArray())
            self._walk.visit(value.valueArray())
        else:
            return False
        return True

    def _elements(self, values: Any, element_type: Any) -> None:
        self._walk.tokens.append(f"values {len(values)}")
        for value in values:
            self.typed(value, element_type)

    def _is(self, value: Any, name: str) -> bool:
        return self._walk.jvm.is_a(value, name)
