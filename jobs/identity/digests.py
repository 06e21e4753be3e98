"""Digests: length-prefixed parts under SHA-256, and the digests of plain values and Arrow data.

Length prefixes keep ("ab", "c") and ("a", "bc") apart. Digests that leave the folder are cut to 16
bytes and written as 32 hex digits.
"""

import hashlib
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

_HEX_DIGITS = 32


def raw_digest(parts: Iterable[bytes | str]) -> bytes:
    """32 bytes over the parts in order; a str counts as its UTF-8 bytes, tagged as text."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            body = part.encode("utf-8", "surrogatepass")
            sha.update(b"s%d:" % len(body))
        else:
            body = part
            sha.update(b"b%d:" % len(body))
        sha.update(body)
    return sha.digest()


def hex_digest(parts: Iterable[bytes | str]) -> str:
    """32 hex digits (16 bytes) over the parts in order."""
    return raw_digest(parts).hex()[:_HEX_DIGITS]


def atom_digest(obj: object) -> bytes | None:
    """Return the digest of a plain value; None for anything else."""
    if obj is None or obj is Ellipsis or obj is NotImplemented:
        return raw_digest(["constant", repr(obj)])
    kind = type(obj)
    if kind in (bool, int):
        return raw_digest([kind.__name__, repr(obj)])
    # `isinstance` alone could run the object's own code
    if kind is float and isinstance(obj, float):
        return raw_digest(["float", struct.pack(">d", obj)])
    if kind is complex and isinstance(obj, complex):
        return raw_digest(["complex", struct.pack(">dd", obj.real, obj.imag)])
    if kind is str and isinstance(obj, str):
        return raw_digest(["str", obj])
    if kind is bytes and isinstance(obj, bytes):
        return raw_digest(["bytes", obj])
    return None


def data_parts(obj: Any) -> list[bytes | str] | None:
    """Return the parts to digest of arrays and Arrow data, by content; None for anything else.

    Subclasses of the user's are something else: their methods count, too.
    """
    kind = type(obj)
    home = str(kind.__module__).partition(".")[0]
    if home == "numpy":
        return _numpy_parts(obj, kind)
    return _arrow_parts(obj, kind) if home == "pyarrow" else None


def _numpy_parts(obj: Any, kind: type) -> list[bytes | str] | None:
    if not (kind is np.ndarray or issubclass(kind, np.generic)) or obj.dtype.hasobject:
        return None
    layout = "" if kind is not np.ndarray else f"{obj.shape} {obj.flags.fnc} {obj.flags.writeable}"
    # the layout in memory decides the order of sums; views of other arrays are sent as copies
    return [kind.__name__, repr(obj.dtype.__reduce__()), layout, obj.tobytes()]


def _arrow_parts(obj: Any, kind: type) -> list[bytes | str] | None:
    name = kind.__name__
    if issubclass(kind, pa.Schema):
        return [name, obj.serialize().to_pybytes()]
    if issubclass(kind, pa.DataType | pa.Field):
        field = obj if issubclass(kind, pa.Field) else pa.field("", obj)
        return [name, pa.schema([field]).serialize().to_pybytes()]
    if issubclass(kind, pa.Scalar):
        obj = pa.array([obj.as_py()], obj.type)
    elif not issubclass(kind, pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table):
        return None
    chunks = [name]
    if issubclass(kind, pa.Array | pa.Scalar | pa.ChunkedArray):
        obj = pa.table({"": obj})
    if issubclass(kind, pa.RecordBatch):
        obj = pa.Table.from_batches([obj])
    chunks += [str([len(chunk) for chunk in column.chunks]) for column in obj.columns]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, obj.schema) as writer:
        writer.write_table(obj.combine_chunks())
    return [*chunks, sink.getvalue().to_pybytes()]
