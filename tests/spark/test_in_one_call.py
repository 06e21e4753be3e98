"""Calls that are made in one give what they give one by one, and fail as they fail."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from durable_shuffle.jobs import in_one_call as module
from durable_shuffle.jobs.engine.catalyst import with_properties
from durable_shuffle.jobs.identity.jvm import document as document_module
from durable_shuffle.jobs.identity.jvm.calls import Jvm, to_seq
from durable_shuffle.jobs.identity.jvm.document import EVERYTHING, writer
from durable_shuffle.jobs.in_one_call import (
    Held,
    during,
    in_one_call,
    list_in,
    or_none,
    standing_for,
    text_of,
)
from durable_shuffle.jobs.java import classes_of

pytestmark = pytest.mark.spark


def objects(jvm: Any) -> Any:
    """An array of values of each kind, as text."""
    array = getattr(jvm, "java.lang.reflect.Array")
    made = array.newInstance(getattr(jvm, "java.lang.Class").forName("java.lang.Object"), 6)
    for i, value in enumerate((None, True, -1, 2**40, 0.5, 'é"\\\n\u2028')):
        made[i] = value
    return getattr(jvm, "java.util.Arrays").toString(made), made[3]


def overloads(jvm: Any) -> Any:
    """Methods of one name, each of which takes another type, twice."""
    text, builder = getattr(jvm, "java.lang.String"), getattr(jvm, "java.lang.StringBuilder")()
    for value in (1, True, "x", 2.5, 2**40) * 2:
        builder.append(text.valueOf(value)).append(value)
    empty = getattr(jvm, "java.lang.StringBuilder")(builder.toString())
    return builder.toString(), empty.append("").length()


def long_texts(jvm: Any) -> Any:
    """Several of them, with more bytes than letters, beside bytes and a short text."""
    text = getattr(jvm, "java.util.Objects").toString
    decoded = getattr(jvm, "java.util.Base64").getDecoder().decode("AAH/")
    return text("é" * 201), decoded, text("short"), text("z\u2028" * 300)


WORK: dict[str, Callable[..., Any]] = {
    "long texts": long_texts,
    "bytes alone": lambda jvm: getattr(jvm, "java.util.Base64").getDecoder().decode("AAH/"),
    "overloads": overloads,
    "values": objects,
    "bytes": lambda jvm: getattr(jvm, "java.lang.String")(b"abc\x7f", "UTF-8"),
    "a list": lambda jvm: to_seq(jvm, [1, "two", None]).mkString("|"),
    "a number": lambda jvm: getattr(jvm, "java.lang.Long").parseLong("9007199254740993"),
    "a float": lambda jvm: getattr(jvm, "java.lang.Double").parseDouble("0.1"),
    "nothing": lambda jvm: or_none(getattr(jvm, "scala.Option").empty()),
    "something": lambda jvm: or_none(getattr(jvm, "scala.Option").apply("it")),
    "a big number": lambda jvm: text_of(getattr(jvm, "scala.math.BigInt").apply("1" * 30)),
    "a static value": lambda jvm: to_seq(jvm, []).size(),
}


@pytest.fixture(params=["one call", "call by call"])
def root(
    request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The JVM; in the second form it has no compiler."""
    if request.param == "call by call":
        monkeypatch.setattr(module, "runner_of", lambda _: None)
    return classes_of(spark)


def test_a_class_that_is_compiled_again_in_one_jvm_is_called(spark: SparkSession) -> None:
    """py4j keeps methods by the names of classes: two of one name would get each other's."""
    classes = classes_of(spark)
    for compiled in (module._compiled, document_module._compiled):
        for _ in range(2):
            compiled.cache_clear()
            plan = in_one_call(classes, lambda jvm: getattr(jvm, "java.lang.Object")())
            written = in_one_call(
                classes,
                lambda _, writer, one: writer.apply(one, EVERYTHING).get(0),
                writer(classes),
                plan,
            )
            assert "java.lang.Object" in written


def test_values_are_those_of_single_calls(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each kind, from a whole function."""
    jvm = classes_of(spark)
    assert module.runner_of(jvm) is not None
    together = {name: in_one_call(jvm, work) for name, work in WORK.items()}
    monkeypatch.setattr(module, "runner_of", lambda _: None)
    alone = {name: in_one_call(jvm, work) for name, work in WORK.items()}
    assert together == alone
    assert together["a number"] == 9007199254740993


@pytest.mark.parametrize("length", [7_990, 8_000, 30_000, 400_000])
@pytest.mark.parametrize("alphabet", ["a", 'aé\u2028"', "0123456789abcdef"])
def test_long_texts_arrive_whole(root: Any, seed: int, length: int, alphabet: str) -> None:
    """In one packet, in several, and in many, beside objects."""
    text = "".join(random.Random(seed).choices(alphabet, k=length))

    def work(jvm: Any) -> tuple[Any, ...]:
        same = getattr(jvm, "java.util.Objects").toString
        return same(text), getattr(jvm, "java.util.ArrayList")(), same(text)

    for fetch in (True, False):
        first, made, second = in_one_call(root, work, fetch=fetch)
        assert (first, second) == (text, text)
        assert module.object_of(made).size() == 0


def test_a_long_text_does_not_wait_for_its_last_packet(spark: SparkSession) -> None:
    """It waited 40 ms, for the receiver to confirm the others."""
    text, seconds = "a" * 30_000, []
    for _ in range(20):
        began = time.perf_counter()
        in_one_call(classes_of(spark), lambda jvm: getattr(jvm, "java.util.Objects").toString(text))
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.03


def noted(jvm: Any, notes: Any, text: str) -> Any:
    notes.add(text)
    return notes.size()


@pytest.mark.parametrize("calls_only", [False, True])
def test_what_is_different_during_calls_is_as_before_behind_them(
    root: Any, *, calls_only: bool
) -> None:
    """Also behind a call that fails, and where the last calls fail."""
    notes = getattr(root, "java.util.ArrayList")()

    def left(jvm: Any, before: Any, notes: Any) -> None:
        notes.add(text_of(before))
        notes.get(1000)

    def entered(jvm: Any, notes: Any) -> Any:
        return noted(jvm, notes, "in")

    with during(root, entered, left, notes, calls_only=calls_only):
        each = calls_only and module.runner_of(root) is not None
        assert notes.size() == (0 if each else 1)
        assert in_one_call(root, lambda jvm, one: noted(jvm, one, "work"), notes) == 2
        with pytest.raises(Py4JError):
            in_one_call(root, lambda _, one: one.get(1000), notes)
    expected = ["in", "work", "1", "in", "4"] if each else ["in", "work", "1"]
    assert list(notes) == expected
    in_one_call(root, lambda jvm, one: noted(jvm, one, "after"), notes)
    assert list(notes) == [*expected, "after"]


def test_a_change_inside_one_of_calls_lasts(spark: SparkSession) -> None:
    """What is around the calls does not take it back."""
    context: Any = spark.sparkContext
    around = with_properties(spark, {"of": "calls"}, calls_only=True)
    with around, with_properties(spark, {"of": "the block"}):
        assert context.getLocalProperty("of") == "the block"
        seen = in_one_call(classes_of(spark), lambda _, sc: sc.getLocalProperty("of"), context._jsc)
        assert seen == "calls"
        assert context.getLocalProperty("of") == "the block"
    assert context.getLocalProperty("of") is None


def test_objects_are_the_same_objects(root: Any, spark: SparkSession) -> None:
    """Those that are passed, that are returned, and that are held in a list."""
    made = getattr(root, "java.util.ArrayList")()

    def work(_: Any, given: Any) -> tuple[Any, ...]:
        given.add("x")
        return given, given.size(), "plain", given.iterator()

    same, size, plain, iterator = in_one_call(root, work, made)
    assert (same, size, plain) == (made, 1, "plain")
    assert isinstance(iterator, JavaObject)
    *held, _ = in_one_call(root, work, made, fetch=False)
    one = held[0]

    def again(jvm: Any) -> Any:
        return standing_for(jvm, one).size()

    assert in_one_call(root, again) == 2
    assert (one.object if isinstance(one, Held) else one) == made


def test_many_objects_in_one_call(root: Any, spark: SparkSession) -> None:
    """More than the JVM's method has arguments."""
    given = [in_one_call(root, lambda jvm, n=n: list_in(jvm, [n])) for n in range(40)]

    def work(jvm: Any, *lists: Any) -> Any:
        return tuple(one.get(0) for one in lists)

    assert in_one_call(root, work, *given) == tuple(range(40))


def test_errors_are_those_of_single_calls(root: Any, spark: SparkSession) -> None:
    """PySpark's own kinds, and py4j's for what no class has; calls behind them are not made."""
    made, session = getattr(root, "java.util.ArrayList")(), spark._jsparkSession

    def fails(jvm: Any, session: Any) -> None:
        session.sql("SELECT no_such_column")
        standing_for(jvm, made).add("never")

    with pytest.raises(AnalysisException, match="no_such_column"):
        in_one_call(root, fails, session)
    assert made.size() == 0
    with pytest.raises(Py4JError):
        in_one_call(root, lambda _, one: one.noSuchMethod(), session)
    with pytest.raises(Exception, match="no_such_setting"):
        in_one_call(root, lambda _, one: one.conf().get("no_such_setting"), session)


def test_a_result_of_other_calls_is_no_value(spark: SparkSession) -> None:
    """It is not there yet."""
    jvm, kept = classes_of(spark), []

    def keeps(_: Any, one: Any) -> Any:
        kept.append(one.iterator())
        return one.size()

    assert in_one_call(jvm, keeps, getattr(jvm, "java.util.ArrayList")()) == 0
    with pytest.raises(ValueError, match="other calls"):
        in_one_call(jvm, lambda j: to_seq(j, kept))


def test_a_document_of_what_a_call_returns(root: Any, spark: SparkSession) -> None:
    """It is read with the calls that lead to it, or by itself where they fail."""
    jvm = Jvm(spark.sparkContext)
    frame: Any = spark.range(3).where("id > 1")
    plan = jvm.seen_of(lambda _, one: one.queryExecution().analyzed(), frame._jdf)
    assert jvm.class_name(plan).endswith(".Filter")
    assert jvm.class_name(plan.child()).endswith(".Range")
