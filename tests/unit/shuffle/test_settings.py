"""Settings: checked once, at the start, and the message names the value."""

import dataclasses

import pytest

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings


def test_defaults_are_accepted_and_frozen() -> None:
    """The defaults pass their own checks and cannot be changed."""
    settings = Settings()
    assert settings.compression == "lz4"
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.compression = "none"


@pytest.mark.parametrize(
    ("name", "lowest"),
    [
        ("writer_memory_bytes", 65536),
        ("frame_bytes", 1024),
        ("max_frame_bytes", 1 << 20),
        ("read_batch_rows", 1),
        ("control_threads", 1),
        ("reserve_records", 1),
        ("inline_state_bytes", 0),
    ],
)
def test_lower_bounds_are_inclusive(name: str, lowest: int) -> None:
    """The lowest value passes, one less does not, nor does anything that is no integer."""
    assert getattr(Settings(**{name: lowest}), name) == lowest
    for bad in (lowest - 1, -1, 0.5, float(lowest), "1", None, True):
        with pytest.raises(InvalidInputError, match=f"settings.{name}.*found={bad!r}"):
            Settings(**{name: bad})


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_known_compressions_are_accepted(compression: str) -> None:
    """Three of them."""
    assert Settings(compression=compression).compression == compression


@pytest.mark.parametrize("compression", ["", "LZ4", "gzip", None])
def test_other_compressions_are_refused(compression: object) -> None:
    """The message lists what there is."""
    with pytest.raises(InvalidInputError, match="'lz4', 'zstd' or 'none'"):
        Settings(compression=compression)
