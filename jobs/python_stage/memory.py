"""Chooses the memory allocator of a worker."""

import ctypes
import sys

import pyarrow as pa

_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 1 << 20


def use_frugal_memory() -> None:
    """Make Arrow use the C library's allocator, which returns large freed blocks to the system.

    Arrow's own allocator keeps them. A map task with `writer_memory_bytes` of 16 MiB took 131 MiB
    with it and 100 MiB without; with 64 MiB, 323 and 253 MiB; at the same speed.

    By default glibc stops returning blocks too: each freed block raises its threshold for separate
    mappings, up to 32 MiB, and smaller blocks stay in a heap that small objects fragment. A sort
    that held 36 MiB in Arrow had 100 MiB resident. So the threshold is fixed at 1 MiB here.

    Both settings last for the process, so later tasks of the worker have them too. They change no
    result.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has no mallopt and needs none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
