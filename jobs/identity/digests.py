"""The one digest of this folder: length-prefixed parts under SHA-256.

Length prefixes keep ("ab", "c") and ("a", "bc") apart. Digests that leave the folder are cut to 16
bytes and written as 32 hex digits.
"""

import hashlib
from collections.abc import Iterable

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
