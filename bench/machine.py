"""What the figures were measured on, in one line."""

import importlib.metadata
import os
import platform
from collections.abc import Collection
from pathlib import Path

_NAMES = ("pyspark", "pyarrow", "distributed")


def machine_text() -> str:
    """Return cores, memory, system and versions."""
    parts = [f"{os.cpu_count()} cores"]
    model = _field(Path("/proc/cpuinfo"), "model name")
    if model:
        parts[0] += f" ({model})"
    memory = _field(Path("/proc/meminfo"), "MemTotal")
    if memory:
        parts.append(f"{int(memory.split()[0]) / (1 << 20):.0f} GiB")
    parts += [platform.system(), f"Python {platform.python_version()}"]
    for name in _NAMES:
        try:
            parts.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(parts)


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = next((line for line in lines if line.startswith(name)), "")
    return found.partition(":")[2].strip()


def short_machine_text() -> str:
    """Return cores and memory in a few words."""
    memory = _field(Path("/proc/meminfo"), "MemTotal")
    size = f", {int(memory.split()[0]) / (1 << 20):.0f} GiB" if memory else ""
    return f"{os.cpu_count()} cores{size}"


def cpu_seconds_of(process_id: int, without: Collection[int] = ()) -> float:
    """Return the CPU time of a process and of all below it so far, as Linux counts it.

    The time of children that have ended is part of their parents'.

    Args:
        without: processes that do not count, nor those below them.
    """
    children, ticks = dict[int, list[int]](), dict[int, int]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [process_id]
    while left:
        found = left.pop()
        if found not in without:
            total += ticks.get(found, 0)
            left += children.get(found, [])
    return total / os.sysconf("SC_CLK_TCK")
