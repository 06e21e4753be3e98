"""PySpark turns some errors of the JVM into its own: an input stays unresolved, nothing fails."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, IllegalArgumentException

from durable_shuffle.jobs import java
from durable_shuffle.jobs.identity.jvm import calls as jvm_module
from durable_shuffle.jobs.identity.jvm import document
from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.identity.plan import functions, moving
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk


@pytest.fixture(params=[Py4JError, AnalysisException, IllegalArgumentException])
def failing(request: pytest.FixtureRequest) -> Any:
    """A method of the JVM that raises one of the errors that calls raise."""

    def fail(*_: object, **__: object) -> Any:
        raise request.param("no such method")

    return fail


def test_an_unknown_type_is_named(failing: Any) -> None:
    """A data type that has no JSON form."""
    walk = CatalystWalk(SimpleNamespace())  # type: ignore[arg-type]
    walk.data_type(SimpleNamespace(json=failing, toString=lambda: "geometry"))
    (reason,) = walk.unresolved
    assert reason.startswith("the data type geometry cannot be recognised")


def test_a_function_in_another_form_is_no_function(
    failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of a Python function that is no array of bytes."""
    monkeypatch.setattr(functions, "array_inside", failing)
    assert functions._bytes(object(), object()) is None


def test_a_text_that_fails_has_no_value(failing: Any) -> None:
    """A constant whose evaluation fails, as the query does."""
    assert moving._folded(SimpleNamespace(eval=failing)) is None


def test_no_class_has_no_objects(failing: Any) -> None:
    """A class that this Spark lacks, and a function without a serialized form."""
    jvm = object.__new__(Jvm)
    jvm.root = type(
        "Root", (), {"py4j.reflection.TypeUtil": SimpleNamespace(isInstanceOf=failing)}
    )()
    jvm.module = lambda _: SimpleNamespace(getSerializationProxy=failing)  # type: ignore[method-assign]
    assert jvm.is_a(object(), "org.apache.spark.Missing") is False
    assert jvm.lambda_proxy(object()) is None


def test_without_a_compiler_objects_are_asked_alone(
    failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark without Janino, or with other classes than the Java text names."""
    monkeypatch.setattr(jvm_module, "document", failing)
    jvm = object.__new__(Jvm)
    jvm.root = object()  # has no compiler
    plan = SimpleNamespace()
    assert jvm.seen(plan) is plan


def test_a_jvm_without_a_compiler_is_asked_for_it_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each plan would pay for the attempt, and the log would say it each time."""
    tried = []

    class NoJanino:
        def __getattr__(self, name: str) -> Any:
            if name == "java.lang.System":
                return SimpleNamespace(nanoTime=lambda: 1)
            tried.append(name)
            raise TypeError(name)

    caplog.set_level(logging.INFO)
    jvm = object.__new__(Jvm)
    jvm.root = NoJanino()
    plan = SimpleNamespace()
    document.compile_ahead(jvm.root)
    assert jvm.seen(plan) is plan
    assert jvm.seen(plan) is plan
    assert tried == ["org.codehaus.janino.SimpleCompiler"]
    assert caplog.text.count("call by call") == 1


def test_a_class_that_comes_with_a_later_jar_is_found_then() -> None:
    """`ADD JAR` and `--packages` of a second session bring classes that were looked up before."""
    table = "org.example.Table"
    client = SimpleNamespace(converters=None, gateway_property=SimpleNamespace(pool=None))
    found: dict[str, Any] = {table: JavaPackage(table, client)}

    class Root:
        def __getattr__(self, name: str) -> Any:
            return found[name]

    names = java._Names(Root())
    assert isinstance(getattr(names, table)._found, JavaPackage)
    found[table] = JavaClass(table, client)
    again = getattr(names, table)
    assert isinstance(again._found, JavaClass)
    assert getattr(names, table) is again, "looked up a third time"
