"""A JVM with Spark's jars but without Spark, in which Janino compiles Java source."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j import java_gateway
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import get_return_value

JARS = Path(pyspark.__file__).parent / "jars"
SOURCES = Path(__file__).parent
_OPENED = ("java.nio", "java.lang", "java.util", "sun.nio.ch")


@contextmanager
def plain_jvm(*, heap: str = "512m", jars: Path = JARS, more: Sequence[Path] = ()) -> Iterator[Any]:
    """Run a JVM with all jars of PySpark, and `more` behind them; it ends with the block.

    Inside the block, errors of a JVM are those of py4j. Once Spark has started in this process,
    PySpark asks Spark's JVM about each of them, by a number that means another object there.
    """
    options = [f"-Xmx{heap}", *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED)]
    classpath = ":".join([f"{jars}/*", *map(str, more)])
    port = launch_gateway(classpath=classpath, javaopts=options, die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    of_pyspark = java_gateway.get_return_value
    java_gateway.get_return_value = get_return_value
    try:
        yield gateway
    finally:
        java_gateway.get_return_value = of_pyspark
        gateway.shutdown()


def java_class(gateway: Any, *names: str) -> Any:
    """Compile Java files of this folder, each seeing those before it; return the last class."""
    jvm = gateway.jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in names:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook((SOURCES / f"{name}.java").read_text())
        loader = compiler.getClassLoader()
    return loader.loadClass(names[-1])


def new_object(gateway: Any, of: Any, arguments: Sequence[Any]) -> Any:
    """Call the only constructor of a class."""
    array = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
    for i, argument in enumerate(arguments):
        array[i] = argument
    return of.getConstructors()[0].newInstance(array)


def byte_arrays(gateway: Any, items: Sequence[bytes]) -> Any:
    """Return a `byte[][]`."""
    reflect = gateway.jvm.java.lang.reflect.Array
    array = reflect.newInstance(gateway.jvm.java.lang.Class.forName("[B"), len(items))
    for i, item in enumerate(items):
        reflect.set(array, i, item)
    return array
