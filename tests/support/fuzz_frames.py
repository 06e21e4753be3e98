"""Frames with right checksums around any bytes: decoded, joined, cut into buffers."""

import struct
import zlib

import msgpack
from fuzz_arrow import MAX_BATCH_BYTES, SCHEMAS, bodies, touch
from fuzz_target import envelope

from durable_shuffle.serialization.arrow_codec import decode_batch
from durable_shuffle.serialization.buffers import BufferCutter
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import Frame, FrameKind
from durable_shuffle.serialization.markers import decode_marker
from durable_shuffle.serialization.msgpack_codec import pack_pairs, pairs_body, unpack_pairs

_FRAME_HEAD = struct.Struct("<BBHIIB")  # kind, flags, reserved, rows, body length, spare


def frames_of(data: bytes) -> bytes:
    """Return frames with right CRCs whose headers and bodies `data` holds one after the other."""
    out, at = b"", 0
    while at + _FRAME_HEAD.size <= len(data) and len(out) < 1 << 16:
        kind, flags, reserved, rows, length, spare = _FRAME_HEAD.unpack_from(data, at)
        at += _FRAME_HEAD.size
        body = data[at : at + length]
        at += length
        lie = length if spare & 1 else len(body)  # a length that the body does not have
        padded = body + bytes(-len(body) % 8)
        head = struct.pack(
            "<IBBHIII", 0x46534489, kind, flags, reserved, rows, lie, zlib.crc32(padded)
        )
        out += head + struct.pack("<I", zlib.crc32(head)) + padded
    return out


def run_frames(data: bytes) -> None:
    """Decode frames fed in pieces, join continued ones, decode bodies by their kind."""
    whole = FrameDecoder(None, max_body_bytes=1 << 20)
    step = 1 + len(data) % 97
    for at in range(0, len(data), step):
        whole.feed(data[at : at + step])
        while (record := whole.next_record()) is not NEED_DATA:
            _body(record)
    whole.end()


def run_buffers(data: bytes) -> None:
    """Cut the same frames into buffers: every byte lies in one of them."""
    cutter = BufferCutter(0, 1 << 20)
    step = 1 + len(data) % 89
    taken = 0
    for at in range(0, len(data), step):
        taken += sum(b.data.nbytes for b in cutter.cut(data[at : at + step]))
    cutter.end()
    assert taken == len(data), "bytes are lost"


def _body(frame: Frame) -> None:
    if frame.kind is FrameKind.MARKER:
        decode_marker(frame.body, name="name")
    elif frame.kind is FrameKind.MSGPACK:
        for _ in unpack_pairs(frame.body, frame.rows):
            pass
    else:
        touch(decode_batch(frame.body, SCHEMAS[0], max_bytes=MAX_BATCH_BYTES))


def frame_seeds() -> tuple[bytes, ...]:
    found = []
    for kind, rows, body in (
        (1, 20, bytes(bodies(SCHEMAS[0], 0)[0])),
        (2, 2, pairs_body([pack_pairs([("a", 1), ("b", [2])])], 2)),
        (3, 0, envelope(msgpack.packb({"fields": {"id": 3}, "kind": "CHECKPOINT"}))),
        (2, 0, b"\x92\xa1a"),
    ):
        flags = int(len(body) == 3)
        found.append(_FRAME_HEAD.pack(kind, flags, 0, rows, len(body), 0) + body)
    return (*found, found[3] + found[3] + found[1], found[2] + found[1])


def bomb_frames(body: bytes) -> tuple[bytes, ...]:
    """Return a body that becomes too much in one frame, in one behind another, in two pieces."""

    def frame(part: bytes, *, more: bool = False) -> bytes:
        rows = 0 if more else 1
        return _FRAME_HEAD.pack(FrameKind.ARROW, int(more), 0, rows, len(part), 0) + part

    half = len(body) // 16 * 8
    pieces = frame(body[:half], more=True) + frame(body[half:])
    return frame(body), frame_seeds()[0] + frame(body), pieces
