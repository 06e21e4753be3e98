"""How much memory a block of a test takes: of the process, and of Arrow's pool alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa


@contextmanager
def bounded(most: int) -> Iterator[None]:
    """Fail if the memory of this process, or of Arrow's pool alone, grows by `most` bytes."""
    pool = pa.default_memory_pool()
    pool.release_unused()
    before, allocated = _resident("VmRSS"), pool.bytes_allocated()
    known = pool.max_memory()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    yield
    assert _resident("VmHWM") - before < most
    assert pool.max_memory() < max(known + 1, allocated + most)


def _resident(field: str) -> int:
    (line,) = [s for s in Path("/proc/self/status").read_text().splitlines() if field in s]
    return int(line.split()[1]) << 10
