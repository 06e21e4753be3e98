"""Markers as frames: what comes back, and what is refused."""

import pytest

from durable_shuffle.serialization.control import encode_control
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frame_decoder import FrameDecoder
from durable_shuffle.serialization.frames import Frame, FrameKind
from durable_shuffle.serialization.markers import (
    Checkpoint,
    EndOfData,
    Marker,
    decode_marker,
    marker_frame,
)

MARKERS: list[Marker] = [
    Checkpoint(0),
    Checkpoint(2**63 - 1),
    EndOfData("FINITE"),
    EndOfData("DRAIN"),
    EndOfData("SUSPEND"),
]


@pytest.mark.parametrize("marker", MARKERS)
def test_marker_comes_back_as_a_frame_without_rows(marker: Marker) -> None:
    """A marker is one frame of its own kind, with 0 rows, under the seed of its place."""
    decoder = FrameDecoder(lambda ordinal: 1000 + ordinal, first_ordinal=7)
    decoder.feed(b"".join(bytes(part) for part in marker_frame(marker, 1007)))
    frame = decoder.next_frame()
    assert isinstance(frame, Frame)
    assert (frame.kind, frame.rows, frame.continues) == (FrameKind.MARKER, 0, False)
    assert decode_marker(frame.body, name="m") == marker
    assert decoder.next_ordinal == 7
    decoder.end()


def test_marker_in_another_place_fails_its_check() -> None:
    """A marker's frame is bound to its address, as every frame."""
    decoder = FrameDecoder(lambda _: 2)
    decoder.feed(b"".join(bytes(part) for part in marker_frame(Checkpoint(1), 1)))
    with pytest.raises(CorruptDataError):
        decoder.next_frame()


@pytest.mark.parametrize("wrong", [EndOfData("LATER"), Checkpoint("7"), "CHECKPOINT"])  # type: ignore[arg-type]
def test_what_is_no_marker_is_refused(wrong: object) -> None:
    """An unknown mode, an id that is no number and no marker at all."""
    with pytest.raises(InvalidInputError):
        marker_frame(wrong, 0)  # type: ignore[arg-type]


def test_unknown_marker_names_what_it_found() -> None:
    """An intact control record of another kind belongs to another version."""
    with pytest.raises(IncompatibleError, match=r"WATERMARK.*CHECKPOINT"):
        decode_marker(encode_control("WATERMARK", {}), name="m")
