"""Checks of a DataFrame before anything is planned or written."""

from collections.abc import Iterator
from typing import Any

from durable_shuffle.serialization.errors import InvalidInputError

NO_STREAM = (
    "a streaming DataFrame cannot be stored as one stage: wrap the batch inside foreachBatch"
)


def check_frame(df: Any, *, streaming: str) -> None:
    """Refuse a DataFrame that cannot be stored.

    An observed DataFrame is refused because its observation would never get a value: a reused
    stage runs nothing, and a stage that is written does not run as an action on `df`.

    Args:
        streaming: the error message for a streaming DataFrame.

    Raises:
        InvalidInputError: not a DataFrame, a streaming one, or an observed one.
    """
    if not hasattr(df, "mapInArrow"):
        raise InvalidInputError(f"a DataFrame is needed, found={type(df).__name__}")
    if df.isStreaming:
        raise InvalidInputError(streaming)
    observed = _observed(df)
    if observed:
        raise InvalidInputError(
            f"df.observe() would never get its value here: observation={observed!r}; observe the "
            "DataFrame that this call returns instead"
        )


def _observed(df: Any) -> str:
    """Return the name of an observation inside the plan, "" if there is none."""
    if hasattr(df, "_jdf"):
        plan = df._jdf.queryExecution().analyzed()  # noqa: SLF001
        names: Iterator[str] = (
            name for one in (plan, *_items(plan.subqueriesAll())) for name in _classic(one)
        )
    else:
        names = _connect(df._plan.to_proto(df.sparkSession.client))  # noqa: SLF001
    return next(names, "")


def _classic(plan: Any) -> Iterator[str]:
    if str(plan.nodeName()) == "CollectMetrics":
        yield str(plan.name())
    for child in _items(plan.children()):
        yield from _classic(child)


def _connect(message: Any) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.name == "CollectMetrics":
            yield str(value.name)
        for one in _messages(value):
            yield from _connect(one)


def _messages(value: Any) -> Iterator[Any]:
    if hasattr(value, "ListFields"):
        yield value
    elif hasattr(value, "values"):  # a map
        yield from (one for one in value.values() if hasattr(one, "ListFields"))
    else:
        yield from value


def _items(seq: Any) -> list[Any]:
    return [seq.apply(i) for i in range(seq.size())]
