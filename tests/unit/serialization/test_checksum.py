"""The checksum and the seed that ties a frame to its address."""

import binascii

import pytest

from durable_shuffle.serialization.checksum import crc32, frame_seed
from durable_shuffle.serialization.errors import InvalidInputError

STAGE = "00112233445566778899aabbccddeeff"


def test_crc32_is_the_standard_one() -> None:
    """The check value of CRC-32 from its catalogue entry."""
    assert crc32(b"123456789") == 0xCBF43926
    assert crc32(b"6789", crc32(b"12345")) == 0xCBF43926


def test_seed_packs_the_address_in_a_fixed_way() -> None:
    """The packing is spelled out byte by byte."""
    packed = bytes.fromhex(STAGE + "07000000" + "09000000" + "0500000000000000")
    assert frame_seed(STAGE, 7, 9, 5) == binascii.crc32(packed)


def test_seed_depends_on_every_part_of_the_address() -> None:
    """Changing any one part gives another seed."""
    other = "10112233445566778899aabbccddeeff"
    seeds = {
        frame_seed(STAGE, 7, 9, 5),
        frame_seed(other, 7, 9, 5),
        frame_seed(STAGE, 8, 9, 5),
        frame_seed(STAGE, 7, 8, 5),
        frame_seed(STAGE, 7, 9, 6),
        frame_seed(STAGE, 9, 7, 5),
    }
    assert len(seeds) == 6


@pytest.mark.parametrize(
    ("stage", "producer", "subpartition", "ordinal"),
    [
        ("00", 0, 0, 0),
        ("zz" * 16, 0, 0, 0),
        ("00 11 22 33 44 55 66 77 88 99 aa", 0, 0, 0),
        (STAGE, -1, 0, 0),
        (STAGE, 2**32, 0, 0),
        (STAGE, 0, 2**32, 0),
        (STAGE, 0, 0, 2**64),
    ],
)
def test_address_that_does_not_fit_is_refused(
    stage: str, producer: int, subpartition: int, ordinal: int
) -> None:
    """Nothing is cut to size in silence; the message names the values."""
    with pytest.raises(InvalidInputError, match=r"stage=.*producer=.*first_ordinal="):
        frame_seed(stage, producer, subpartition, ordinal)
