"""Processes by what they are, from the system's own account."""

import os
from contextlib import suppress
from pathlib import Path


def ancestor(pid: int, command: str) -> int:
    """The nearest process at or above `pid` whose command line holds `command`."""
    while command not in command_of(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        pid = int(fields[1])
        assert pid > 1, f"no {command} above the process"
    return pid


def command_of(pid: int) -> str:
    """Return a process's command line; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def session_of(*words: str) -> int:
    """Return the one process session with a process whose command line holds all words."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and all(word in command_of(int(entry.name)) for word in words):
            with suppress(OSError):
                found.add(os.getsid(int(entry.name)))
    (session,) = found
    return session


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
