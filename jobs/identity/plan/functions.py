"""Identifies the Python functions inside a plan.

The JVM holds each function as this driver pickled it. The bytes differ from run to run, so the
function is unpickled here, in the process that pickled it, and identified by
`functions/identity.py`. It is neither stored nor called here.

Then the pickled function in the JVM is replaced by the same function behind a check: in jobs whose
rows are stored, workers prove that they run the modules that were identified (`user_code`). They
also tell what the function opens outside of its arguments (`told`).
"""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from pyspark import SparkContext
from pyspark.serializers import CPickleSerializer

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.identity import FunctionIdentity, identify_function
from durable_shuffle.jobs.identity.functions.told import ear_of
from durable_shuffle.jobs.identity.functions.user_code import (
    VARIABLE,
    checked_command,
    environment_of,
    note_code,
    plain_command,
)
from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, set_field
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import array_inside, broadcasts

if TYPE_CHECKING:
    from collections.abc import Iterator


class PlanFunctions:
    """Handles the Python functions of a plan; collects their digests while the walk runs."""

    def __init__(self, walk: CatalystWalk) -> None:
        self._walk = walk
        self._known: dict[tuple[bytes, str], int] = {}
        self._found: list[FunctionIdentity | None] = []
        self.met = 0
        """How many places of the plan that were visited hold a function."""
        self.digests: list[str] = []
        self.captured: dict[str, str] = {}
        self.code: list[str] = []
        self.unresolved: list[str] = []
        """The sentences of the walk that are about functions."""
        walk.handlers["SimplePythonFunction"] = self._function

    def _function(self, node: Any, name: str) -> None:
        self.met += 1
        held = _bytes(self._walk.jvm.root, node.command())
        if held is None:
            self._walk.give_up_on("a Python function held in an unknown form", node)
            return
        command = plain_command(held)
        # the same command can name different broadcasts: their ids are in its bytes
        environment = environment_of(dict(node.envVars()))
        number = self._known.setdefault((command, environment), len(self.digests))
        self._walk.tokens.append(f"{name}, list {number}")
        if number < len(self._found):
            _prove(node, command, held, self._found[number])
            return
        try:
            with _driver_broadcasts(node.broadcastVars()):
                function = _unpickled(command)
                identity = identify_function(function)
        except Exception as error:  # noqa: BLE001 - user code runs when its objects are unpickled
            self.digests.append("unresolved")
            self._found.append(None)
            self._walk.give_up(
                f"a Python function that cannot be unpickled ({error})", hex_digest([command])
            )
            return
        self.digests.append(hex_digest([identity.digest, environment]))
        self._found.append(identity)
        self.captured |= identity.captured
        self.code += _code_of(identity)
        note_code(SparkContext._active_spark_context, identity)  # noqa: SLF001
        _prove(node, command, held, identity)
        for reason in identity.unresolved:
            self._walk.give_up(f"a Python function ({reason})", hex_digest([command]))
            self.unresolved.append(self._walk.unresolved[-1])


def _prove(node: Any, command: bytes, held: bytes, identity: FunctionIdentity | None) -> None:
    """Make the function's workers compare modules with the driver's, and tell what it opens."""
    if identity is None or not (identity.modules or identity.watched):
        return
    context: Any = SparkContext._active_spark_context  # noqa: SLF001
    variables, includes = node.envVars(), node.pythonIncludes()
    if VARIABLE in context.environment:
        variables.put(VARIABLE, context.environment[VARIABLE])
    for archive in context._python_includes:  # noqa: SLF001
        if archive not in includes:  # a function may be older than this package's archive
            includes.append(archive)
    ear = ear_of(context) if identity.watched else None
    checked = checked_command(command, identity.modules, ear, _code_of(identity))
    if checked == held:
        return
    other = classes_of(context).SimplePythonFunction(
        *(bytearray(checked), variables, includes, node.pythonExec(), node.pythonVer()),
        *(node.broadcastVars(), node.accumulator()),
    )
    set_field(classes_of(context), node, "command", other.command())


def _code_of(identity: FunctionIdentity) -> tuple[str, ...]:
    return identity.code or (identity.digest,)  # a function of a library has no code of its own


def _unpickled(command: bytes) -> object:
    """Return the function of a command, which may be a tuple of function and return type."""
    loads = cast("Any", CPickleSerializer()).loads
    loaded = loads(command)
    if isinstance(loaded, broadcasts.Broadcast):  # functions over 1 MB travel as a broadcast
        loaded = loads(loaded.value)
    return loaded[0] if isinstance(loaded, tuple) else loaded


def _bytes(root: Any, command: Any) -> bytes | None:
    """Return the bytes of a Scala Seq[Byte] in one call; None if it has another form."""
    if isinstance(command, bytes | bytearray):
        return bytes(command)
    try:
        array = array_inside(root, command)
    except JVM_ERRORS:
        return None
    return bytes(array) if isinstance(array, bytes | bytearray) else None


@contextmanager
def _driver_broadcasts(variables: Any) -> "Iterator[None]":
    """Make these broadcast variables readable on the driver, from the files that it wrote.

    PySpark fills this registry only in workers. It is restored at the end.
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
