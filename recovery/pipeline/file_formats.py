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
    try:
        lines = [
            json.dumps(row, default=_plain, ensure_ascii=False, allow_nan=False)
            for batch in batches
            for row in batch.to_pylist()
        ]
    except ValueError as error:
        raise InvalidInputError(f"JSON cannot hold a value of this sink: {error}") from error
    return "".join(f"{line}\n" for line in lines).encode()


def _plain(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise InvalidInputError(f"JSON cannot hold a {type(value).__name__}")
