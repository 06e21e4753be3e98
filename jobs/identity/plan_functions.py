"""Python functions inside a plan.

The JVM holds what this driver pickled for its workers. It is unpickled again, in the process that
made it, and identified by `function_identity`; pickled bytes themselves differ from run to run.
Nothing unpickled here is ever stored or run.
"""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError
from pyspark.core import broadcast as broadcasts
from pyspark.serializers import CPickleSerializer

from durable_shuffle.jobs.identity.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.function_identity import identify_function

if TYPE_CHECKING:
    from collections.abc import Iterator


class PlanFunctions:
    """Handler for the Python functions of a plan; collects their digests while the walk runs."""

    def __init__(self, walk: CatalystWalk) -> None:
        self._walk = walk
        self._known: dict[bytes, int] = {}
        self.digests: list[str] = []
        walk.handlers["SimplePythonFunction"] = self._function

    def _function(self, node: Any, name: str) -> None:
        command = _bytes(node.command())
        if command is None:
            self._walk.give_up_on("a Python function held in an unknown form", node)
            return
        # the same command can name different broadcasts: their ids are in its bytes
        at = self._known.setdefault(command, len(self.digests))
        self._walk.tokens.append(f"{name}, list {at}")
        if at < len(self.digests):
            return
        try:
            with _driver_broadcasts(node.broadcastVars()):
                function = _unpickled(command)
                identity = identify_function(function)
        except Exception as error:  # noqa: BLE001 - user code runs when its objects are unpickled
            self.digests.append("unresolved")
            self._walk.give_up(
                f"a Python function that cannot be unpickled ({error})", hex_digest([command])
            )
            return
        self.digests.append(identity.digest)
        for reason in identity.unresolved:
            self._walk.give_up(f"a Python function ({reason})", hex_digest([command]))


def _unpickled(command: bytes) -> object:
    """The function of a command: alone, or in a tuple with its return type."""
    loads = cast("Any", CPickleSerializer()).loads
    loaded = loads(command)
    if isinstance(loaded, broadcasts.Broadcast):  # functions over 1 MB travel as a broadcast
        loaded = loads(loaded.value)
    return loaded[0] if isinstance(loaded, tuple) else loaded


def _bytes(command: Any) -> bytes | None:
    """A Scala Seq[Byte] in one call."""
    if isinstance(command, bytes | bytearray):
        return bytes(command)
    try:
        array = command.unsafeArray()
    except Py4JError:
        return None
    return bytes(array) if isinstance(array, bytes | bytearray) else None


@contextmanager
def _driver_broadcasts(variables: Any) -> "Iterator[None]":
    """Let broadcast variables be unpickled on the driver, from the files the driver wrote.

    PySpark keeps that registry for its workers; it is put back as it was found.
    """
    registry = broadcasts._broadcastRegistry  # noqa: SLF001
    before = dict(registry)
    try:
        for variable in variables:
            path = variable.value().path()
            registry[int(variable.id())] = broadcasts.Broadcast(path=path)
        yield
    finally:
        registry.clear()
        registry.update(before)
