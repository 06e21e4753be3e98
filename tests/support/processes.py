"""Processes by what they are, from the system's own account."""

from pathlib import Path


def ancestor(pid: int, command: str) -> int:
    """The nearest process at or above `pid` whose command line holds `command`."""
    while command not in Path(f"/proc/{pid}/cmdline").read_text():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        pid = int(fields[1])
        assert pid > 1, f"no {command} above the process"
    return pid
