"""Identity without a JVM, on what each version of Spark says of many plans.

The recordings are golden: a fingerprint that differs from its own makes every stage that users have
stored anew. If that is meant, record again with each version (scripts/record_plans.py).
"""

import lzma
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_calls import (
    Answers,
    Fact,
    documents_of,
    facts_of,
    with_document,
)
from recorded_plans import FOLDER, Identities, Recording

from durable_shuffle.serialization.errors import DurableShuffleError

RECORDINGS = sorted(FOLDER.glob("spark-*.json.xz"))
NAMED = [path for path in RECORDINGS if "spark-3" not in path.name]
"""Scala 2.12 does not name the arguments of case classes, so documents of 3.5 do not, either."""


def _version(path: Path) -> str:
    return path.name.removesuffix(".json.xz")


@pytest.fixture(scope="module", autouse=True)
def recorded_zone() -> Iterator[None]:
    """The time zone of the recordings, which is part of an identity."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("path", RECORDINGS, ids=_version)
def test_a_recording_keeps_no_folder_of_its_machine(path: Path) -> None:
    """Jars and the warehouse stand in folders that say nothing."""
    assert b"site-packages" not in lzma.decompress(path.read_bytes())


@pytest.mark.parametrize("path", RECORDINGS, ids=_version)
def test_fingerprints_stay_as_they_were(path: Path) -> None:
    """Of all plans, by both walks; and nothing is asked that was not recorded."""
    assert len(RECORDINGS) == 5
    recording, differ = Recording(path), {}
    for name, found, left in recording.every():
        expected = recording.plans[name]["identities"]
        if found != expected:
            differ[name] = _differing(found, expected)
        assert not left, name
    assert not differ


def _differing(found: Identities, expected: Identities) -> list[str]:
    if found.keys() != expected.keys():
        return [f"{list(found)} instead of {list(expected)}"]
    return [
        f"{name}: {part}"
        for name, parts in expected.items()
        for part in {*parts, *found[name]}
        if parts.get(part) != found[name].get(part)
    ]


NOT_COUNTED = {
    "names count where an operator may see them (see BLIND)": (
        *("Alias.name", "AliasIdentifier.name", "AttributeReference.name", "OuterReference.name"),
        *("AttributeReference.otherCopyArgs", "Generate.qualifier", "NamedLambdaVariable.name"),
        *("schema.fieldNames", "fieldNames", "SubqueryExec.name"),
    ),
    "a view only names its input": (
        *("View.isTempView", "CatalogTable", "CatalogTableType", "CatalogStorageFormat"),
        "TableIdentifier.table",
    ),
    "a column's type is that of the leaf or the expression which it comes from": (
        *("AttributeReference.nullable", "ArrayType", "MapType", "StructType"),
    ),
    "ids are numbered anew": ("ExprId.id", "CommonExpressionId.id"),
    "it follows from other values": (
        *("BroadcastPartitioning.numPartitions", "UnknownPartitioning.numPartitions"),
    ),
    "it says how Spark computes, not what": (
        *("WholeStageCodegenExec.otherCopyArgs", "ShuffleExchangeExec.pipelined"),
        *("FileSourceScanExec.markedForSingleTaskExecution", "LocalTableScanExec.useSingleTask"),
    ),
    "frames of streams are refused before": ("isStreaming",),
}
"""Why no identity depends on a value -> the value: its class and name, or one of both."""


@pytest.mark.parametrize("path", [NAMED[0], NAMED[-1]], ids=_version)
def test_every_value_of_a_plan_counts(path: Path) -> None:
    """Change each value that the JVM says of a plan: the identity differs, or it is refused.

    What does not count is listed, with the reason. A recording holds the first two places of each
    kind of value, in each walk.
    """
    recording = Recording(path)
    before = {name: found for name, found, _ in recording.every()}
    tried, unnoticed = Counter[tuple[int, str]](), set[str]()
    for name, plan in recording.plans.items():
        for walk, (question, number, document) in enumerate(documents_of(plan["answers"])):
            answers = plan["answers"][question]
            for fact in facts_of(document):
                key = min(walk, 2), fact.of
                if tried[key] >= 2 or _said_by_class(fact):
                    continue
                tried[key] += 1
                with fact.being(_another(fact.value)):
                    changed = list(answers)
                    changed[number] = with_document(answers[number], document)
                if _found(recording, name, {question: changed}) == before[name]:
                    unnoticed.add(fact.of)
    assert len(tried) > 200
    listed = {one for of_reason in NOT_COUNTED.values() for one in of_reason}
    counted = {
        one for one in unnoticed if not {one, *one.split(".", 1), one.rpartition(".")[2]} & listed
    }
    assert not counted, "\n".join(sorted(counted))


@pytest.mark.parametrize("path", NAMED, ids=_version)
def test_numbers_of_a_jvm_do_not_count(path: Path) -> None:
    """Another JVM numbers columns and objects in another way; all identities stay.

    Below `range` stands a logical operator, which no document of a physical plan goes into.
    """
    recording, rng, differ = Recording(path), random.Random(5), {}
    before = {name: found for name, found, _ in recording.every()}
    for name, plan in recording.plans.items():
        if name == "range":
            continue
        changed = {asked: list(answers) for asked, answers in plan["answers"].items()}
        for question, number, document in documents_of(plan["answers"]):
            columns = [fact for fact in facts_of(document) if fact.of == "ExprId.id"]
            numbers = sorted({one.value for one in columns})
            others = rng.sample(range(10**6), len(numbers))
            drawn = dict(zip(numbers, others, strict=True))
            for fact in columns:
                fact.set(drawn[fact.value])
            for node in document["nodes"]:
                node[1] = rng.getrandbits(31)
            changed[question][number] = with_document(changed[question][number], document)
        differ[name] = _differing(recording.identities(name, changed), before[name])
    assert not any(differ.values()), {name: parts for name, parts in differ.items() if parts}


def _said_by_class(fact: Fact) -> bool:
    """Whether a value is of a Scala object, whose class says all; or a number of the JVM's."""
    of, _, name = fact.of.partition(".")
    return of.endswith("$") or (name == "id" and of.endswith(("Exec", "InputAdapter")))


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}~"
    ((kind, text),) = value.items()
    return {kind: "eHg=" if kind == "bytes" else f"{text}1"}


def _found(recording: Recording, name: str, changed: Answers) -> Identities | None:
    try:
        return recording.identities(name, changed)
    except (AssertionError, DurableShuffleError, ValueError):  # it cannot be recognised, or read
        return None
