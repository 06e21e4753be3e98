"""Which keys the storages accept: one rule for all of them, so that a key is valid everywhere.

The rule is narrow on purpose. A part never starts with a dot (no '..', and hidden names stay free
for temporary files), and no character means something to a glob, a URL or a query string.
"""

import re

from durable_shuffle.serialization.errors import InvalidInputError

MAX_KEY_CHARS = 1000
"""S3, GCS and Azure end at 1,024 bytes; the root takes a few of them."""

MAX_PART_CHARS = 255
"""What ext4, XFS and NFS allow for one name."""

_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=-]*")


def check_key(key: str) -> str:
    """Return `key` if it names an object below a root.

    Raises:
        InvalidInputError: empty, absolute, too long, with an empty part, a part that starts with a
            dot, or a character other than letters, digits, '.', '_', '=' and '-'.
    """
    if not 0 < len(key) <= MAX_KEY_CHARS:
        raise InvalidInputError(f"a key must be 1 to {MAX_KEY_CHARS} characters, found={key!r}")
    for part in key.split("/"):
        if not _PART.fullmatch(part) or len(part) > MAX_PART_CHARS:
            raise InvalidInputError(
                f"a key is relative, its parts are 1 to {MAX_PART_CHARS} letters, digits, '.', "
                f"'_', '=' or '-' and do not start with a dot; found part={part!r} in key={key!r}"
            )
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it may be listed: empty for the whole root, else a key and a final '/'.

    Raises:
        InvalidInputError: anything else.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidInputError(f"a prefix ends with '/', found={prefix!r}")
        check_key(prefix[:-1])
    return prefix


def check_range(key: str, start: int, length: int) -> None:
    """Refuse a bad key, or a range that no object can have.

    Raises:
        InvalidInputError: the key is bad, or the start or the length is negative.
    """
    check_key(key)
    if start < 0 or length < 0:
        raise InvalidInputError(
            f"{key}: start and length of a range are never negative, found start={start} "
            f"length={length}"
        )
