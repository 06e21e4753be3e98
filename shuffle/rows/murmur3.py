"""MurmurHash3 x86_32 as Spark computes it, for many rows at once.

Strategy: every function takes one running hash per row and returns the next one, as uint32 arrays,
whose arithmetic wraps without warnings. Byte strings are sorted by length, longest first, so that
the rows with a word left to mix are always a prefix. Once few rows are left, each is finished on
its own.

Spark differs from the published algorithm in the last one to three bytes of a string: each of them
is sign-extended and mixed as a word of its own.

It must not know Arrow or Spark types, or loop in Python over the rows of a normal column.
"""

import numpy as np
import numpy.typing as npt

UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.intp]

C1 = 0xCC9E2D51
C2 = 0x1B873593
M5 = 0xE6546B64
MASK = 0xFFFFFFFF

# One numpy step over a few rows costs about as much as 64 steps of the Python loop, so fewer rows
# are finished one by one. This also bounds the cost of one very long string.
FEW_ROWS = 64

# A long string becomes Python integers in pieces of this many words, about 2.5 MB each.
CHAIN_WORDS = 65_536

# Longer strings count as equally long: with uint16 keys, numpy's stable sort is a radix sort.
MAX_SORTED = 0xFFFF


def _rotl(words: UInt32s, bits: int) -> None:
    high = words >> np.uint32(32 - bits)
    words <<= np.uint32(bits)
    words |= high


def mix_k(words: UInt32s) -> UInt32s:
    """Scramble one input word per row. The result does not depend on the running hash."""
    mixed = words * np.uint32(C1)
    _rotl(mixed, 15)
    mixed *= np.uint32(C2)
    return mixed


def mix_h(hashes: UInt32s, mixed: UInt32s) -> UInt32s:
    """Fold one scrambled word per row into the running hashes."""
    folded = hashes ^ mixed
    _rotl(folded, 13)
    folded *= np.uint32(5)
    folded += np.uint32(M5)
    return folded


def fmix(hashes: UInt32s, lengths: UInt32s | np.uint32) -> UInt32s:
    """Finish: fold in the input length in bytes and avalanche."""
    out = hashes ^ lengths
    out ^= out >> np.uint32(16)
    out *= np.uint32(0x85EBCA6B)
    out ^= out >> np.uint32(13)
    out *= np.uint32(0xC2B2AE35)
    out ^= out >> np.uint32(16)
    return out


def hash_ints(hashes: UInt32s, values: UInt32s) -> UInt32s:
    """Hash one 4-byte integer per row, given as its two's complement bits."""
    return fmix(mix_h(hashes, mix_k(values)), np.uint32(4))


def hash_longs(hashes: UInt32s, values: UInt64s) -> UInt32s:
    """Hash one 8-byte integer per row, given as its two's complement bits: low word, then high."""
    mixed = mix_h(hashes, mix_k(values.astype(np.uint32)))
    mixed = mix_h(mixed, mix_k((values >> np.uint64(32)).astype(np.uint32)))
    return fmix(mixed, np.uint32(8))


def hash_bytes(hashes: UInt32s, data: Bytes, starts: Indices, lengths: Indices) -> UInt32s:
    """Hash one byte string per row.

    Args:
        hashes: running hash of each row.
        data: the bytes of all rows; C-contiguous, any alignment.
        starts: offset of each row's first byte in `data`.
        lengths: bytes of each row, at least 0, below 2**31. `starts + lengths` is within `data`.
    """
    longest_first = (MAX_SORTED - np.minimum(lengths, MAX_SORTED)).astype(np.uint16)
    order = np.argsort(longest_first, kind="stable")
    sorted_lengths = lengths[order]
    sorted_starts = starts[order]
    running = _mix_words(hashes[order], data, sorted_starts, sorted_lengths >> 2)
    _mix_tails(running, data, sorted_starts, sorted_lengths)
    out = np.empty_like(running)
    out[order] = fmix(running, sorted_lengths.astype(np.uint32))
    return out


def _mix_words(hashes: UInt32s, data: Bytes, starts: Indices, words: Indices) -> UInt32s:
    """Mix the whole 4-byte little-endian words of each row. Rows are sorted longest first."""
    if words.size == 0 or data.size < 4:
        return hashes
    # One uint32 at every byte offset: a window over the same memory, nothing is copied.
    at_offset = np.ndarray((data.size - 3,), np.dtype("<u4"), data, 0, (1,))
    # active[i]: the number of rows with more than i words, for i below the sorted limit.
    clipped = np.minimum(words, MAX_SORTED >> 2)
    active = np.cumsum(np.bincount(clipped)[::-1])[::-1][1:]
    done = 0
    for count in active.tolist():
        if count < FEW_ROWS:
            break
        word = at_offset[starts[:count] + 4 * done]
        hashes[:count] = mix_h(hashes[:count], mix_k(word))
        done += 1
    for row in np.flatnonzero(words > done).tolist():
        rest = data[starts[row] + 4 * done : starts[row] + 4 * words[row]]
        hashes[row] = _chain(int(hashes[row]), rest)
    return hashes


def _chain(running: int, data: Bytes) -> int:
    """Mix the words of one row. Only the fold must run in Python; numpy scrambles all words."""
    words = np.frombuffer(data, np.dtype("<u4"))
    for first in range(0, words.size, CHAIN_WORDS):
        piece = words[first : first + CHAIN_WORDS].astype(np.uint32)
        for mixed in mix_k(piece).tolist():
            running ^= mixed
            running = ((running << 13 | running >> 19) * 5 + M5) & MASK
    return running


def _mix_tails(hashes: UInt32s, data: Bytes, starts: Indices, lengths: Indices) -> None:
    """Mix, in place, the last one to three bytes of each row, each as a sign-extended word."""
    whole = lengths & ~3
    for nth in range(3):
        rows = np.flatnonzero((lengths & 3) > nth)
        signed = data[starts[rows] + whole[rows] + nth].view(np.int8)
        hashes[rows] = mix_h(hashes[rows], mix_k(signed.astype(np.int32).view(np.uint32)))
