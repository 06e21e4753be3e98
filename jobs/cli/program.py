"""What a command line says: the user's program, its job, the same with our wrapper. Pure.

`jobs/transparent_program.py` is the wrapper.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import durable_shuffle
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import check_name

PREFIX = "spark.durableShuffle."
"""As in `jobs/options.py`, which needs PySpark."""
PROGRAMS = (".py", ".sql")
"""What the wrapper runs: a Python program, or SQL statements."""
_FLAGS = ("--verbose", "-v", "--supervise", "--version", "--help", "-h", "--usage-error")
"""Options of spark-submit that take no value."""
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
"""Options of Python that take one."""


def through_wrapper(
    command: Sequence[str], url: str | None, job: str | None, options_env: str | None
) -> tuple[list[str], str]:
    """Return the command with the wrapper in place of the program, and the job's name.

    Raises:
        InvalidInputError: no Python program is named, or its name is no name of a job.
    """
    at = program_at(command)
    job = check_name("job", job or Path(command[at]).stem)
    given = json.dumps({"url": url, "job": job, "storage_options_env": options_env})
    wrapper = Path(durable_shuffle.__file__).parent / "jobs" / "transparent_program.py"
    return [*command[:at], str(wrapper), given, *command[at:]], job


def setting_in(command: Sequence[str], name: str) -> str | None:
    """Return what `--conf` gives spark-submit for `spark.durableShuffle.<name>`, else None."""
    key = PREFIX + name
    found = [word.removeprefix("--conf=").partition("=") for word in command]
    return next((value for name, _, value in found if name == key and value), None)


def program_at(command: Sequence[str]) -> int:
    """Return where in the command the program is: Python, or a file of SQL statements.

    Raises:
        InvalidInputError: it is none of `python job.py` and `spark-submit ... job.py`.
    """
    launcher = Path(command[0]).name
    spark = launcher.startswith("spark-submit")
    at = 1
    while (spark or launcher.startswith("python")) and at < len(command):
        word = command[at]
        if not word.startswith("-"):
            if word.endswith(PROGRAMS):
                return at
            break
        if word in ("-m", "-c"):
            break
        taken = word not in _FLAGS and "=" not in word if spark else word in _WITH_VALUE
        at += 2 if taken else 1
    raise InvalidInputError(
        "--transparent needs `python PROGRAM.py ...` or `spark-submit ... PROGRAM.py ...`, "
        f"found={' '.join(command[: at + 1])!r}"
    )
