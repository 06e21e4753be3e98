"""Several calls into the driver's JVM in one round trip.

A call over py4j costs 0.05 to 0.2 ms, whatever it does. `in_one_call` hands a function a recorder
in place of the JVM. What it calls on the recorder is written down, and what such a call returns
stands for a value that is not there yet. Then all calls are made inside the JVM, where py4j's own
code chooses the methods. (The technique is promise pipelining: Liskov and Shrira, 1988.)
"""

import base64
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

from py4j import java_gateway, protocol
from py4j.java_collections import JavaArray
from py4j.java_gateway import JavaObject

from durable_shuffle.shuffle.base.user_code import named_text_of

_LOG = logging.getLogger(__name__)
_MOST_OBJECTS = 12
_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"
_ARRAY = "java.lang.reflect.Array"
_BYTES = protocol.SUCCESS + protocol.BYTES_TYPE
_compiling = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Change:
    """Something that is different during calls, and how it gets what it was before."""

    enter: Callable[..., Any]
    leave: Callable[..., None]
    objects: tuple[Any, ...]


class _Around(threading.local):
    changes: tuple[_Change, ...] = ()


_around = _Around()


class Held:
    """An object in a list in the JVM. It is fetched when it is asked for, with a call."""

    __slots__ = ("seen_place",)

    def __init__(self, found: Any, number: int) -> None:
        self.seen_place = found, number

    @property
    def object(self) -> Any:
        """The object, as py4j's."""
        found, number = self.seen_place
        return found.get(number)


def in_one_call(root: Any, work: Callable[..., Any], *objects: Any, fetch: bool = True) -> Any:
    """Return what a function returns whose calls are made in the JVM in one round trip.

    Args:
        root: from `classes_of`.
        work: takes what stands for `root`, then for each object. It calls methods, constructors
            and static methods as with py4j, with texts, numbers, bytes, objects and earlier
            results as arguments, and returns a result or a tuple of them. It must not look at a
            result: there is none yet. It may be called with the JVM itself, where nothing compiles.
        objects: of the JVM, or of a document.
        fetch: return the objects of a tuple themselves, and not as `Held`. The JVM keeps each as
            long as it is held here, and is told when it is not.

    Returns:
        The result, or a tuple of the results, as py4j returns them; of an array of texts, a list.

    Raises:
        Py4JError: a call failed; those behind it were not made.
    """
    runner = runner_of(root)
    if runner is None:
        return _plainly(work(root, *objects))
    calls = _Calls(root)
    names = _Names(calls, "", root)
    changed = [change.enter(names, *map(calls.later, change.objects)) for change in _around.changes]
    wanted = work(names, *map(calls.later, objects))
    each = wanted if isinstance(wanted, tuple) else (wanted,)
    numbers, last = list(map(calls.written, each)), len(calls.steps)
    for change, before in reversed(list(zip(_around.changes, changed, strict=True))):
        change.leave(names, before, *map(calls.later, change.objects))
    steps = [*calls.steps, last, numbers, fetch]
    found = _answer(runner, json.dumps(steps, allow_nan=False), calls.objects)
    if not isinstance(found, bytes):
        values = [found]
    else:
        client, end = runner._gateway_client, 4 + int.from_bytes(found[:4], "big")  # noqa: SLF001
        values, texts = json.loads(found[4:end]), found[end:]
        held = None if fetch else _named(values.pop(), client)
        values = [_value_in(one, held, client, texts) for one in values]
    return tuple(values) if isinstance(wanted, tuple) else values[0]


@contextmanager
def during(
    root: Any,
    enter: Callable[..., Any],
    leave: Callable[..., None],
    *objects: Any,
    calls_only: bool = False,
) -> Iterator[None]:
    """Change something of the JVM, such as a property of its thread, while a block is open.

    Args:
        root: from `classes_of`.
        enter: a function as `in_one_call` takes it.
        leave: the same; it takes what `enter` returned before the objects. It is called in any
            case. If it fails, nothing is raised: the context was stopped.
        objects: of the JVM.
        calls_only: change it for each `in_one_call` of this thread, inside that call. This takes no
            call of its own, and nothing else sees the change: no call of Spark's API.
    """
    if calls_only and runner_of(root) is not None:
        before = _around.changes
        _around.changes = *before, _Change(enter, leave, objects)
        try:
            yield
        finally:
            _around.changes = before
        return
    with _nothing_around():
        found = in_one_call(root, enter, *objects)
    try:
        yield
    finally:
        with suppress(Exception), _nothing_around():
            in_one_call(root, lambda jvm, *objects: leave(jvm, found, *objects), *objects)


@contextmanager
def _nothing_around() -> Iterator[None]:
    """What is around a call would take back what the call changes."""
    before, _around.changes = _around.changes, ()
    try:
        yield
    finally:
        _around.changes = before


def _named(name: str, client: Any) -> Any:
    """Return the object of which py4j would have answered the name."""
    return protocol.get_return_value(protocol.SUCCESS + name, client)


def _answer(runner: Any, script: str, objects: Sequence[Any]) -> Any:
    """Return what `run` of the JVM's class answers, with the texts of its protocol.

    py4j itself asks eight converters about each argument, and decodes bytes in a loop of Python.
    """
    client, target = runner._gateway_client, runner._target_id  # noqa: SLF001
    given = [protocol.STRING_TYPE + protocol.escape_new_line(script)]
    given += [protocol.REFERENCE_TYPE + one._get_object_id() for one in objects]  # noqa: SLF001
    given += [protocol.NULL_TYPE] * (_MOST_OBJECTS - len(objects))
    lines = [protocol.CALL_COMMAND_NAME + target, "run", *given, protocol.END_COMMAND_PART]
    answer = client.send_command("\n".join(lines))
    if answer.startswith(_BYTES):
        return base64.b64decode(answer[len(_BYTES) :])
    return java_gateway.get_return_value(
        answer, client, target, "run"
    )  # PySpark's, with its errors


def _value_in(value: Any, held: Any, client: Any, texts: bytes) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, of),) = value.items()
    if kind == "text":
        return texts[of[0] : of[1]].decode()
    if kind == "bytes":
        return base64.b64decode(of)
    return _named(of, client) if kind == "of" else Held(held, of)


def now(root: Any) -> Any:
    """Return the JVM's names themselves, for what must be known while calls are recorded."""
    return root._root if isinstance(root, _Names) else root  # noqa: SLF001


def object_of(value: Any) -> Any:
    """Return a result that may be `Held` as py4j's object."""
    return value.object if isinstance(value, Held) else value


def standing_for(root: Any, value: Any) -> Any:
    """Return what stands for an object in the function of `in_one_call` that takes `root`."""
    if isinstance(root, _Names):
        return value if isinstance(value, _Later) else root._calls.later(value)  # noqa: SLF001
    return object_of(value)


def list_in(jvm: Any, values: Iterable[Any]) -> Any:
    """Return a java.util.List of values; for a function of `in_one_call`.

    py4j's own takes a call for each value.
    """
    found = getattr(jvm, "java.util.ArrayList")()
    for value in values:
        found.add(value)
    return found


def empty_rdd(jvm: Any, context: Any, partitions: int) -> Any:
    """Return the JVM's RDD of so many partitions without elements; for a function of `in_one_call`.

    `range` of a SparkContext takes 4 ms: Spark looks into the code of the functions that it uses.

    Args:
        context: a SparkContext.
        partitions: from 1.
    """
    java_context = getattr(jvm, "org.apache.spark.api.java.JavaSparkContext")
    return java_context.fromSparkContext(context).parallelize(list_in(jvm, ()), partitions).rdd()


def text_of(value: Any) -> Any:
    """Return a number's text; for a function of `in_one_call`."""
    return value.toString() if isinstance(value, _Later) else str(value)


def or_none(option: Any) -> Any:
    """Return what a Scala Option has, None if it has nothing; for a function of `in_one_call`."""
    if isinstance(option, _Later):
        return option._calls.step("option", option, "")  # noqa: SLF001
    return option.get() if option.isDefined() else None


@lru_cache(maxsize=4)
def _compiled(root: Any) -> Any | None:
    def call_by_call(root: Any, work: Callable[[Any], Any]) -> Any:
        made = work(root)
        return made.of(JavaObject(protocol.GATEWAY_SERVER_OBJECT_ID, made._gateway_client))  # noqa: SLF001

    package = "durable_shuffle.jobs"
    return compiled_in_driver(root, package, "in_one_call.java", "ListOfCalls", call_by_call)


def runner_of(root: Any) -> Any | None:
    """Return what makes a list of calls, None without a compiler. It is compiled once per JVM."""
    with _compiling:
        return _compiled(root)


def compiled_in_driver(
    root: Any,
    package: str,
    file: str,
    name: str,
    made_by: Callable[[Any, Callable[[Any], Any]], Any] = in_one_call,
) -> Any | None:
    """Return a new object of a class that is compiled in the driver's JVM.

    Each compiled class has a name of its own: py4j keeps methods by the names of classes, and would
    call those of an earlier class of the same name.

    Args:
        root: from `classes_of`.
        package: has the file with the class's Java text.
        name: of the class.
        made_by: makes the calls, and returns what is returned.

    Returns:
        None if this JVM has no compiler, or the text does not compile there.
    """
    try:
        own_name = f"{name}_{getattr(root, 'java.lang.System').nanoTime()}"
        source = files(package).joinpath(file).read_text(encoding="utf-8")
        text = re.sub(rf"\b{name}\b", own_name, source)

        def made(jvm: Any) -> Any:
            compiler = getattr(jvm, "org.codehaus.janino.SimpleCompiler")()
            parent = getattr(jvm, "java.lang.Class").forName(_TREE).getClassLoader()
            compiler.setParentClassLoader(parent)
            compiler.cook(text)
            return compiler.getClassLoader().loadClass(own_name).newInstance()

        return made_by(root, made)
    except Exception as error:  # noqa: BLE001 - a JVM that ends, another Janino, no Janino
        _LOG.info("the JVM is asked call by call, which is slow: %s", named_text_of(error))
        return None


def _plainly(result: Any) -> Any:
    """Return a result of calls that were made one by one as `in_one_call` returns it."""
    if isinstance(result, tuple):
        return tuple(map(_plainly, result))
    is_texts = isinstance(result, JavaArray) and all(isinstance(one, str) for one in result)
    return list(result) if is_texts else result


class _Calls:
    """Calls that were recorded. Each is a list: its kind, what it is made on, a name, arguments.

    A value in it is itself, or a list with the number of a call or, below 0, of an object.
    """

    def __init__(self, root: Any) -> None:
        self.steps: list[list[Any]] = []
        self.objects: list[Any] = []
        self._root = root
        self._more = 0
        self._of_lists: dict[tuple[int, int], _Later] = {}

    def step(self, kind: str, on: Any, name: str, *arguments: Any) -> "_Later":
        self.steps.append([kind, self.written(on), name, *map(self.written, arguments)])
        return _Later(self, len(self.steps) - 1)

    def later(self, value: Any) -> "_Later":
        """Return what stands for an object: of the JVM, of a document, or `Held`."""
        if isinstance(value, JavaObject):
            for number, known in enumerate(self.objects):
                if known is value:
                    return _Later(self, -1 - number)
            if len(self.objects) < _MOST_OBJECTS - 1:
                self.objects.append(value)
                return _Later(self, -len(self.objects))
            if not self._more:
                self.objects.append(getattr(self._root, "java.util.ArrayList")())
            self.objects[-1].add(value)
            self._more += 1
            return _Later(self, -_MOST_OBJECTS).get(self._more - 1)
        held, number = value.seen_place
        place = id(held), number
        if place not in self._of_lists:
            self._of_lists[place] = self.later(held).get(number)
        return self._of_lists[place]

    def written(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes | bytearray):
            return {"bytes": base64.b64encode(value).decode()}
        if not isinstance(value, _Later):
            return self.written(self.later(value))
        if value._calls is not self:  # noqa: SLF001
            raise ValueError("a result of other calls, which is not there yet")
        return [value._number]  # noqa: SLF001


class _Later:
    """What a call will return. Arrays have elements."""

    def __init__(self, calls: _Calls, number: int) -> None:
        self._calls, self._number = calls, number

    def __getattr__(self, name: str) -> Callable[..., "_Later"]:
        return partial(self._calls.step, "call", self, name)

    def __getitem__(self, at: int) -> "_Later":
        return self._calls.step("static", _ARRAY, "get", self, at)

    def __setitem__(self, at: int, value: Any) -> None:
        self._calls.step("static", _ARRAY, "set", self, at, value)


class _Names:
    """A package, a class, or a method of a class."""

    def __init__(self, calls: _Calls, name: str, root: Any) -> None:
        self._calls, self._name, self._root = calls, name, root

    def __getattr__(self, name: str) -> Any:
        if name == "MODULE$":
            return self._calls.step("field", self._name, name)
        return _Names(self._calls, f"{self._name}.{name}".removeprefix("."), self._root)

    def __call__(self, *arguments: Any) -> _Later:
        owner, _, name = self._name.rpartition(".")
        is_method = owner.rpartition(".")[2][:1].isupper()  # of a class; packages are in lower case
        if is_method:
            return self._calls.step("static", owner, name, *arguments)
        return self._calls.step("new", self._name, "", *arguments)
