"""Which keys the storages accept: one rule for all, so that a key is valid in every storage.

The rule is narrow on purpose. No part starts with a dot, which rules out '..' and leaves hidden
names to temporary files. No character has a meaning in a glob, a URL or a query string.
"""

import re

from durable_shuffle.serialization.errors import InvalidInputError

MAX_KEY_CHARS = 1000
"""S3, GCS and Azure allow 1,024 bytes, and the root needs some of them."""

MAX_PART_CHARS = 255
"""The longest name that ext4, XFS and NFS allow."""

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
    """Return `prefix` if it may be listed: empty for the whole root, else a key followed by '/'.

    Raises:
        InvalidInputError: anything else.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidInputError(f"a prefix ends with '/', found={prefix!r}")
        check_key(prefix[:-1])
    return prefix


def check_range(key: str, start: int, length: int) -> None:
    """Refuse a bad key or a range that no object can have.

    Raises:
        InvalidInputError: the key is bad, or the start or the length is negative.
    """
    check_key(key)
    if start < 0 or length < 0:
        raise InvalidInputError(
            f"{key}: start and length of a range are never negative, found start={start} "
            f"length={length}"
        )
