"""Processes by what they are, from the system's own account."""

from pathlib import Path


def ancestor(pid: int, command: str) -> int:
    """The nearest process at or above `pid` whose command line holds `command`."""
    while command not in Path(f"/proc/{pid}/cmdline").read_text():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        pid = int(fields[1])
        assert pid > 1, f"no {command} above the process"
    return pid


def descendants(pid: int) -> list[tuple[int, str]]:
    """Return (pid, name of its program) of all processes below `pid`, parents first."""
    found = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in map(int, children):
            found.append((child, Path(f"/proc/{child}/comm").read_text().strip()))
            found += descendants(child)
    except FileNotFoundError:  # it ended meanwhile
        pass
    return found
