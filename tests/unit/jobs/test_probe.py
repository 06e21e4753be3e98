"""Whether rows can stay in the JVM is found out once per application, beside other work."""

import threading
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from durable_shuffle.jobs.jvm_rows import probe


class Context:
    """Stands for an application."""


class Session:
    """As much of a session as says which application it belongs to."""

    def __init__(self, context: Context) -> None:
        self.sparkContext = context


def test_it_is_asked_once_and_nobody_waits_before_they_need_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, asked = threading.Event(), list[Any]()

    def slow(spark: SparkSession) -> str:
        asked.append(spark)
        assert gate.wait(60)
        return "no such class"

    monkeypatch.setattr(probe, "probe", slow)
    context = Context()
    sessions = [cast("SparkSession", Session(context)) for _ in range(2)]
    assert not probe.start_probe(sessions[0]).done()
    gate.set()
    assert {probe.why_refused(session) for session in sessions} == {"no such class"}
    assert probe.why_refused(cast("SparkSession", Session(Context()))) == "no such class"
    assert len(asked) == 2
