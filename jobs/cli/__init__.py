"""The command `durable-shuffle`. This file only says what to install if libraries are missing.

`app.py` lists all commands. They are in `looking.py`, `cat.py`, `verify.py`, `changing.py`,
`run.py` and `pipeline.py`; what is the same for all of them is in `call.py`.
"""

import importlib.util
import logging
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit: 0 fine, 1 a finding or failure, 2 misuse."""
    signal.signal(signal.SIGTERM, _end)  # first: Linux drops what process 1 does not handle
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"the command line needs {' and '.join(missing)}: pip install 'durable-shuffle[cli]'\n"
        )
        raise SystemExit(2)
    from durable_shuffle.jobs.cli.app import app  # needs typer

    logging.basicConfig(format="%(message)s")  # warnings, on standard error
    app()


def _end(number: int, _: object) -> None:
    """End as Ctrl-C does, so that what a command started does not stay behind."""
    raise SystemExit(128 + number)
