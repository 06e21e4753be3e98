"""Classes of the driver's JVM by name, each looked up once.

py4j asks the JVM for each `jvm.some.package.Class`, and again for each static method of it, at 0.05
to 0.2 ms a time. Names of classes mean the same as long as the JVM lives.
"""

from functools import lru_cache
from typing import Any, cast

from py4j.java_gateway import JavaClass, JavaMember, JavaObject, JavaPackage
from pyspark import SparkContext
from pyspark.sql import SparkSession


def classes_of(spark: SparkSession | SparkContext) -> Any:
    """Return what has the classes and packages of the driver's JVM as attributes, as `_jvm` has.

    A class is best named whole: `getattr(classes_of(spark), "java.lang.System")`.
    """
    return _known(cast("Any", spark)._jvm)  # noqa: SLF001


@lru_cache(maxsize=4)
def _known(root: Any) -> "_Names":
    return _Names(root)


class _Names:
    """A package, or a class with its constructor, static methods and static values."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._found, name)
        if isinstance(found, JavaClass):
            found = _Names(found)
        elif isinstance(found, JavaPackage):
            found = _Names(found)
            if name != name.lower():
                return found  # a class that may come later, with a jar
        elif not isinstance(found, JavaMember | JavaObject):
            return found
        self.__dict__[name] = found
        return found

    def __call__(self, *arguments: Any) -> Any:
        return self._found(*arguments)
