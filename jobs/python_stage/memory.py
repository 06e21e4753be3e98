"""Where a worker's Arrow memory comes from."""

import ctypes
import sys

import pyarrow as pa

_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 1 << 20


def use_frugal_memory() -> None:
    """Let Arrow take memory from the C library, which gives large pieces back when they are freed.

    Arrow's own allocator keeps them: measured 131 MiB against 100 MiB of a map task with
    `writer_memory_bytes` of 16 MiB, 323 against 253 with 64 MiB, at the same speed.

    glibc by itself stops to give them back: each freed piece raises the size from which it asks the
    system, up to 32 MiB, and what it then keeps is cut up by small objects in between. Of a sort
    that held 36 MiB in Arrow 100 were resident. So that size is fixed here.

    Both are settings of the process, which a later task of the same worker finds; they change no
    result.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none, and needs none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
