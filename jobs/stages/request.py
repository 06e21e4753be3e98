"""What a user asks for, and the checks it must pass before anything is written."""

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame

from durable_shuffle.jobs.engine.checks import NO_STREAM, check_columns, check_frame, check_key
from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.stage import PASSTHROUGH
from durable_shuffle.shuffle.rows.partitioner import check_partition_count


@dataclass(frozen=True, slots=True)
class StageRequest:
    """What the user asked for. With `n` None, keep the partitions (`durable`)."""

    df: DataFrame
    name: str
    n: int | None
    cols: tuple[str | Column, ...]


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request whose arguments passed all checks."""

    df: DataFrame
    name: str
    n: int | None
    cols: tuple[str | Column, ...]
    partitioner: str
    key_positions: tuple[int, ...]
    """Positions of the key columns in `df`; empty without keys, or if any key is computed."""


def check_request(request: StageRequest, engine: Engine) -> CheckedRequest:
    """Return the request with its partitioner.

    Raises:
        InvalidInputError: names what is wrong: the label, n, a column or its type.
    """
    check_name("name", request.name)
    df = request.df
    check_frame(df, streaming=NO_STREAM)
    if request.n is not None:
        check_partition_count(request.n)
    check_columns(df.schema)
    if not request.cols:
        kind = PASSTHROUGH if request.n is None else "round_robin"
        return CheckedRequest(df, request.name, request.n, (), kind, ())
    try:
        keys = df.select(*request.cols).schema
    except AnalysisException as e:
        shown = ", ".join(str(c) for c in request.cols)
        raise InvalidInputError(
            f"key column not usable: asked for {shown}; columns are "
            f"{', '.join(df.columns)} ({e.getCondition() or 'analysis failed'})"
        ) from e
    for field in keys:
        check_key(field.name, field.dataType)
    positions = engine.key_positions(df, request.cols)
    return CheckedRequest(df, request.name, request.n, request.cols, "hash", positions)
