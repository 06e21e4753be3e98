"""Python objects as frame bodies: one msgpack array of records. Never pickle.

Strategy: msgpack's own types are stored natively, all others as the extension types of
`msgpack_extensions`. A value comes back with the type that it had, or the encoder refuses it and
names the type. Equal records give equal bytes, also for sets.

Exceptions: bytearray and memoryview come back as bytes; an aware datetime or time comes back with
a fixed offset instead of its zone.
"""

from collections.abc import Callable, Sequence

import msgpack  # type: ignore[import-untyped]

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
)
from durable_shuffle.serialization.msgpack_extensions import (
    DECODE_ERRORS,
    decode_extension,
    encode_extension,
)

# Tuples and sets are nested encodings. Reading one takes some 40 kB of C stack per level, so the
# depth has a limit that holds for a thread's stack also. Lists and maps nest up to msgpack's 511.
MAX_TUPLE_NESTING = 32


def encode_records(records: Sequence[object]) -> bytes:
    """Return the records as one msgpack array.

    Raises:
        InvalidInputError: a record holds a type that cannot be stored, which is named, or nests
            too deep.
    """
    return _Encoder().encode(list(records), 0)


def decode_records(body: Bytes) -> list[object]:
    """Return the records in `body`.

    No length in the bytes can claim more elements than the body has bytes.

    Raises:
        CorruptDataError: the bytes are not exactly one msgpack array of storable values.
        IncompatibleError: an extension type is unknown to this version.
    """
    size = memoryview(body).nbytes
    try:
        records = _Decoder().decode(body, 0)
    except DurableShuffleError:
        raise
    except DECODE_ERRORS as error:
        msg = f"msgpack body of {size} bytes: {type(error).__name__}: {error}"
        raise CorruptDataError(msg) from error
    if not isinstance(records, list):
        msg = f"msgpack body of {size} bytes: expected an array, found {type(records).__name__}"
        raise CorruptDataError(msg)
    return records


class _Encoder:
    """One packer per nesting level, since a packer cannot be entered twice."""

    def __init__(self) -> None:
        self._packers: list[msgpack.Packer] = []
        self._depth = 0

    def encode(self, value: object, depth: int) -> bytes:
        if depth > MAX_TUPLE_NESTING:
            msg = f"record nests tuples and sets deeper than {MAX_TUPLE_NESTING} levels"
            raise InvalidInputError(msg)
        if depth == len(self._packers):
            self._packers.append(self._new_packer(depth))
        try:
            encoded: bytes = self._packers[depth].pack(value)
        except DurableShuffleError:
            raise
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            msg = f"record cannot be stored: {type(error).__name__}: {error}"
            raise InvalidInputError(msg) from error
        return encoded

    def _new_packer(self, depth: int) -> msgpack.Packer:
        def nested(value: object) -> bytes:
            return self.encode(value, depth + 1)

        def default(value: object) -> msgpack.ExtType:
            return encode_extension(value, nested)

        return msgpack.Packer(default=default, strict_types=True, use_bin_type=True)


class _Decoder:
    """One extension hook per nesting level."""

    def __init__(self) -> None:
        self._hooks: list[Callable[[int, bytes], object]] = []

    def decode(self, data: Bytes, depth: int) -> object:
        if depth > MAX_TUPLE_NESTING:
            msg = f"nested deeper than {MAX_TUPLE_NESTING} levels"
            raise ValueError(msg)
        if depth == len(self._hooks):
            self._hooks.append(self._new_hook(depth))
        # unpackb bounds every length by that of `data`
        value: object = msgpack.unpackb(
            data, ext_hook=self._hooks[depth], strict_map_key=False, raw=False
        )
        return value

    def _new_hook(self, depth: int) -> Callable[[int, bytes], object]:
        def nested(inner: Bytes) -> object:
            return self.decode(inner, depth + 1)

        def ext_hook(code: int, payload: bytes) -> object:
            return decode_extension(code, payload, nested)

        return ext_hook
