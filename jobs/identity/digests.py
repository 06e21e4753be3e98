"""Digests: length-prefixed parts under SHA-256, and the digests of plain values and Arrow data.

Length prefixes keep ("ab", "c") and ("a", "bc") apart. Digests that leave the folder are cut to 16
bytes and written as 32 hex digits.
"""

import hashlib
import struct
from collections.abc import Iterable

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
    if isinstance(obj, float) and kind is float:
        return raw_digest(["float", struct.pack(">d", obj)])
    if isinstance(obj, complex) and kind is complex:
        return raw_digest(["complex", struct.pack(">dd", obj.real, obj.imag)])
    if isinstance(obj, str) and kind is str:
        return raw_digest(["str", obj])
    if isinstance(obj, bytes | bytearray) and kind in (bytes, bytearray):
        return raw_digest([kind.__name__, bytes(obj)])
    return None


def data_parts(obj: object) -> list[bytes | str] | None:
    """Return the parts to digest of arrays and Arrow data, by content; None for anything else."""
    if isinstance(obj, np.ndarray) and type(obj) is np.ndarray and not obj.dtype.hasobject:
        head = [obj.dtype.str, repr(obj.dtype.descr), repr(obj.shape)]
        return ["ndarray", *head, obj.tobytes()]
    if isinstance(obj, np.generic) and not obj.dtype.hasobject:
        return ["numpy scalar", obj.dtype.str, obj.tobytes()]
    if isinstance(obj, pa.Schema):
        return ["schema", obj.serialize().to_pybytes()]
    if isinstance(obj, pa.DataType | pa.Field):
        field = obj if isinstance(obj, pa.Field) else pa.field("", obj)
        return [type(obj).__name__, pa.schema([field]).serialize().to_pybytes()]
    if isinstance(obj, pa.Scalar):
        obj = pa.array([obj.as_py()], obj.type)
    if isinstance(obj, pa.Array | pa.ChunkedArray):
        obj = pa.table({"": obj})
    if isinstance(obj, pa.RecordBatch):
        obj = pa.Table.from_batches([obj])
    if isinstance(obj, pa.Table):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, obj.schema) as writer:
            writer.write_table(obj.combine_chunks())
        return ["arrow", sink.getvalue().to_pybytes()]
    return None
