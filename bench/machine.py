"""What the figures were measured on, in one line."""

import importlib.metadata
import os
import platform
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
