"""The examples in docs/internals/format.md are what the code writes, byte by byte."""

import re
from pathlib import Path

import numpy as np
import pytest

from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.control import bound, encode_control
from durable_shuffle.serialization.frames import FrameKind, frame_parts
from durable_shuffle.serialization.msgpack_codec import encode_records
from durable_shuffle.shuffle.log.extent_table import EXTENT, pack_block

DOCUMENT = Path(__file__).parents[3] / "docs" / "internals" / "format.md"


def example(name: str) -> bytes:
    """The bytes of the fenced block ```hex <name>: what follows # is comment."""
    blocks = re.findall(rf"^```hex {name}\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)
    (block,) = blocks
    return bytes.fromhex("".join(line.partition("#")[0] for line in block.splitlines()))


def written_frame() -> bytes:
    seed = frame_seed("000102030405060708090a0b0c0d0e0f", 3, 5, 100)
    body = encode_records(["hi", 7])
    return b"".join(frame_parts(FrameKind.MSGPACK, 2, body, seed))


def written_control() -> bytes:
    return encode_control("ABORT", {"attempt": "a1", "producer": 3})


def written_block() -> bytes:
    extents = [(4, 0, 0, 64, 0, 3), (4, 1, 8, 40, 3, 1), (6, 0, 0, 0, 0, 0)]
    return pack_block(np.array(extents, dtype=EXTENT), "subpartition")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("frame", written_frame()),
        ("control", written_control()),
        ("bound", bound(written_control(), "job/log/0000000000")[12:16]),
        ("block", written_block()),
    ],
    ids=["frame", "control", "bound", "block"],
)
def test_example_is_what_the_code_writes(name: str, written: bytes) -> None:
    """A change of the format changes the document, or this fails."""
    assert example(name) == written


@pytest.mark.parametrize(
    "heading",
    [
        "Layout of a job",
        "Frames",
        "Control records",
        "Segments",
        "Extent blocks",
        "Index",
        "Commit records",
    ],
)
def test_document_has_its_sections(heading: str) -> None:
    """Each part of the format has its place."""
    assert re.search(rf"^## {heading}$", DOCUMENT.read_text(), re.M)
