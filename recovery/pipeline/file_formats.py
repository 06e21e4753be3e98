"""Record batches as whole files, in memory: Parquet, JSON lines. Equal rows give equal bytes."""

import base64
import io
import json
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from durable_shuffle.serialization.errors import InvalidInputError

FORMATS = ("parquet", "json")


def encode_file(batches: Sequence[pa.RecordBatch], schema: pa.Schema, kind: str) -> bytes:
    """Return a file with the rows of `batches`, in order.

    In JSON, times are ISO 8601, decimals strings, bytes base64.

    Raises:
        InvalidInputError: a value that JSON cannot hold.
    """
    if kind == "parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_batches(batches, schema=schema), sink)
        return sink.getvalue()
    lines = [_line(row) for batch in batches for row in batch.to_pylist()]
    return "".join(f"{line}\n" for line in lines).encode()


def _line(row: dict[str, Any]) -> str:
    try:
        return _json(row)
    except (ValueError, TypeError) as error:
        for name, value in row.items():
            try:
                _json(value)
            except (ValueError, TypeError) as cause:
                raise InvalidInputError(
                    f"column {name!r}: JSON cannot hold {value!r}: {cause}"
                ) from cause
        raise InvalidInputError(f"JSON cannot hold a row of this sink: {error}") from error


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"there is no form for a {type(value).__name__}")
