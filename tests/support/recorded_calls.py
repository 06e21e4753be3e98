"""What a driver's JVM answered once: code that reads plans runs on it again, without a JVM.

`Recorder` notes each question that py4j sends, and the answer. `Player` gives the same answers to
the same questions. A list of calls (`in_one_call`) goes by the name of the function that makes it,
so its steps may change; what it returns may not.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from py4j.java_gateway import GatewayProperty, JavaObject, JVMView
from py4j.protocol import BYTES_TYPE, MEMORY_COMMAND_NAME, SUCCESS
from pyspark import SparkContext
from pyspark.sql import SparkSession

from durable_shuffle.jobs.in_one_call import in_one_call, runner_of
from durable_shuffle.jobs.java import classes_of

Answers = dict[str, list[str]]
"""Question -> answers, in the order in which they were given."""
_DOCUMENT = "durable_shuffle.jobs.identity.jvm.document.document.<locals>.written"
_BYTES = SUCCESS + BYTES_TYPE
_RUNNER = "runner"


class NotRecordedError(Exception):
    """A question that nobody asked when the answers were recorded."""


def _question(command: str, runner: str) -> str:
    """Return a command, or the name of the function whose calls are made, and its objects."""
    head = f"c\n{runner}\nrun\n"
    if not command.startswith(head):
        return command
    frame = sys._getframe()
    while frame.f_code is not in_one_call.__code__:
        assert frame.f_back is not None
        frame = frame.f_back
    work = frame.f_locals["work"]
    while isinstance(work, partial):
        work = work.func
    _, *objects = command.removeprefix(head).split("\n")
    return "\n".join([f"{work.__module__}.{work.__qualname__}", *objects])


class Recorder:
    """Notes what the JVM of a session is asked meanwhile."""

    def __init__(self, spark: SparkSession) -> None:
        self._client: Any = cast("Any", spark)._sc._gateway._gateway_client
        self._runner = ""
        self.first: Answers = {}
        """Answers that an application gets before all others."""
        with self.noting(self.first):
            runner = runner_of(classes_of(spark))
        assert runner is not None, "this JVM cannot compile"
        self._runner = str(runner._target_id)
        self.ids = {
            _RUNNER: self._runner,
            "session": cast("Any", spark)._jsparkSession._target_id,
            "context": cast("Any", spark)._jsc._target_id,
        }

    @contextmanager
    def noting(self, answers: Answers) -> Iterator[None]:
        """Add the questions of a block, which must not start threads, to the answers."""
        send: Callable[..., Any] = self._client.send_command

        def noted(command: str, *more: Any, **named: Any) -> Any:
            found = send(command, *more, **named)
            if not command.startswith(MEMORY_COMMAND_NAME):
                answers.setdefault(_question(command, self._runner), []).append(found)
            return found

        self._client.send_command = noted
        try:
            yield
        finally:
            del self._client.send_command


class Player:
    """Stands for py4j's client. The last answer to a question is given as often as it is asked."""

    address, port = "recorded", 0

    def __init__(self, ids: Mapping[str, str], first: Answers) -> None:
        self.gateway_property = GatewayProperty(False, None, False)
        self.converters: list[Any] = []
        self._ids, self._first = ids, first
        self._answers: Answers = {}
        self._given: dict[str, int] = {}
        self.runner = self.object(ids[_RUNNER])

    @property
    def answers(self) -> Answers:
        """The answers to what comes now."""
        return self._answers

    @answers.setter
    def answers(self, answers: Answers) -> None:
        self._answers, self._given = answers, {}

    def object(self, name: str) -> JavaObject:
        """Return an object of the JVM, by its id or by what it is to the application."""
        return JavaObject(self._ids.get(name, name), self)

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> str:
        """Answer as the JVM did."""
        del retry, binary
        question = _question(command, self._ids[_RUNNER])
        answers = self._answers.get(question) or self._first.get(question)
        if not answers:
            raise NotRecordedError(question)
        number = self._given.get(question, 0)
        self._given[question] = number + 1
        return answers[min(number, len(answers) - 1)]

    def left(self) -> list[str]:
        """Return the questions that were asked less often than when they were recorded."""
        return [one for one, found in self._answers.items() if len(found) > self._given.get(one, 0)]


def played_session(player: Player) -> SparkSession:
    """Return a session whose JVM is a player."""
    jvm = JVMView(player, "default", id="rj")
    context: Any = object.__new__(SparkContext)
    context._jsc, context._jvm, context.environment = player.object("context"), jvm, {}
    context._gateway = SimpleNamespace(jvm=jvm, _gateway_client=player)
    spark: Any = object.__new__(SparkSession)
    spark._sc, spark._jsc, spark._jvm = context, context._jsc, jvm
    spark._jsparkSession = player.object("session")
    return cast("SparkSession", spark)


def documents_of(answers: Answers) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the documents among answers: the question, which answer to it, and the document."""
    for question, found in answers.items():
        if question.startswith(f"{_DOCUMENT}\n"):
            for number, answer in enumerate(found):
                values, texts = _unpacked(answer)
                begin, end = values[0]["text"]
                yield question, number, json.loads(texts[begin:end])


def with_document(answer: str, document: dict[str, Any]) -> str:
    """Return the answer that has another document in it."""
    values, texts = _unpacked(answer)
    assert values[0]["text"] == [0, len(texts)]
    text = json.dumps(document).encode()
    return _packed([{"text": [0, len(text)]}, *values[1:]], text)


def readable(question: str, answer: str) -> str | list[Any]:
    """Return an answer as what it says, which takes less room when it is compressed."""
    if not (answer.startswith(_BYTES) and question.startswith("durable_shuffle.")):
        return answer
    values, texts = _unpacked(answer)
    return [values, texts.decode()]


def as_answered(_: str, kept: str | list[Any]) -> str:
    """Return what `readable` took."""
    return kept if isinstance(kept, str) else _packed(kept[0], kept[1].encode())


def _packed(values: list[Any], texts: bytes) -> str:
    head = json.dumps(values).encode()
    return _BYTES + base64.b64encode(len(head).to_bytes(4, "big") + head + texts).decode()


def _unpacked(answer: str) -> tuple[list[Any], bytes]:
    found = base64.b64decode(answer[len(_BYTES) :])
    end = 4 + int.from_bytes(found[:4], "big")
    return json.loads(found[4:end]), found[end:]


@dataclass(frozen=True, slots=True)
class Fact:
    """One value in a document: what an object is made with, and what a method of that name says."""

    of: str
    """Simple class and argument; of what stands in a list or an Option, those of its owner."""
    value: Any
    places: tuple[tuple[list[Any], int], ...]

    @contextmanager
    def being(self, value: Any) -> Iterator[None]:
        """Let the document have another value meanwhile."""
        self.set(value)
        try:
            yield
        finally:
            self.set(self.value)

    def set(self, value: Any) -> None:
        """Let the document have another value from now on."""
        for place, at in self.places:
            place[at] = value


def facts_of(document: dict[str, Any]) -> Iterator[Fact]:
    """Yield all values of a document, but not what stands in its lists by number."""
    nodes = document["nodes"]
    members = [_members(document, node) for node in nodes]
    owners: dict[int, tuple[int, str]] = {}
    for number, of_node in enumerate(members):
        for name, places in of_node.items():
            for place, at in places:
                if isinstance(place[at], list) and len(place[at]) == 1:
                    owners.setdefault(place[at][0] - 1, (number, name))

    def owner(number: int, name: str) -> str:
        full: str = document["classes"][nodes[number][0]][0]
        while full.startswith(("scala.", "[")) and number in owners:
            number, name = owners[number]
            full = document["classes"][nodes[number][0]][0]
        return f"{full.rpartition('.')[2]}.{name}"

    for number, of_node in enumerate(members):
        for name, places in of_node.items():
            value = places[0][0][places[0][1]]
            if value is not None and not isinstance(value, list):
                yield Fact(owner(number, name), value, tuple(places))


def _members(document: dict[str, Any], node: list[Any]) -> dict[str, list[tuple[list[Any], int]]]:
    _, _, _, methods, fields = document["classes"][node[0]]
    found: dict[str, list[tuple[list[Any], int]]] = {}
    for at in range(len(node[2] or [])):
        name = fields[at] if fields and at < len(fields) else str(at)
        found.setdefault(name, []).append((node[2], at))
    for at, name in enumerate(methods, start=3):
        found.setdefault(name, []).append((node, at))
    return found
