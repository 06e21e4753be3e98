"""PySpark turns some errors of the JVM into its own: an input stays unresolved, nothing fails."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, IllegalArgumentException

from durable_shuffle.jobs.identity.plan import document, functions, moving
from durable_shuffle.jobs.identity.plan import jvm as jvm_module
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.jvm import Jvm


@pytest.fixture(params=[Py4JError, AnalysisException, IllegalArgumentException])
def failing(request: pytest.FixtureRequest) -> Any:
    """A method of the JVM that raises one of the errors that calls raise."""

    def fail(*_: object) -> Any:
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
    jvm._is_instance_of = failing
    jvm.root = SimpleNamespace()
    jvm.module = lambda _: SimpleNamespace(getSerializationProxy=failing)  # type: ignore[method-assign]
    assert jvm.is_a(object(), "org.apache.spark.Missing") is False
    assert jvm.lambda_proxy(object()) is None


def test_without_a_compiler_objects_are_asked_alone(
    failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark without Janino, or with other classes than the Java text names."""
    monkeypatch.setattr(jvm_module, "document", failing)
    jvm = object.__new__(Jvm)
    jvm.root = SimpleNamespace()
    plan = SimpleNamespace()
    assert jvm.seen(plan) is plan


def test_compiling_ahead_fails_in_silence(failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan that needs it meets the error, and asks call by call."""
    tried = threading.Event()

    def compiled(root: object) -> None:
        tried.set()
        failing()

    monkeypatch.setattr(document, "_compiled", compiled)
    document.compile_ahead(SimpleNamespace())
    assert tried.wait(10)
