"""Programs of drivers, identified and pickled in one new process and called in another."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).parents[2] / "src"
_DRIVER = """
import base64, json, sys
from durable_shuffle.jobs.identity.functions.identity import identify_function
from pyspark.cloudpickle import dumps, loads
answers = []
for text, name in json.load(sys.stdin):
    space = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), space)
    found = identify_function(space["f"])
    sent = dumps(space["f"])
    again = [identify_function(loads(sent)).digest, identify_function(space["f"]).digest]
    answers.append([found.digest, found.unresolved, again, base64.b64encode(sent).decode()])
print(json.dumps(answers))
"""
_WORKER = """
import base64, json, pickle, sys
def call(sent):
    try:
        return repr(pickle.loads(base64.b64decode(sent))(3))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
print(json.dumps([call(sent) for sent in json.load(sys.stdin)]))
"""


@dataclass(frozen=True)
class Sent:
    """The function `f` of a program, as a driver identified and pickled it."""

    digest: str
    unresolved: tuple[str, ...]
    unpickled: str
    """Digest of the function that the driver unpickled."""
    afterwards: str
    """Digest of the function after it was pickled and unpickled."""
    pickled: str


def asked(code: str, question: object, folder: Path, seed: str, path: Sequence[Path]) -> Any:
    """Return what a new process answers as JSON. It imports modules from `folder` and `path`."""
    places = [str(_SOURCE), str(folder), *map(str, path)]
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONHASHSEED": seed},
        cwd=folder,
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def in_driver(
    programs: Sequence[str | tuple[str, str]],
    folder: Path,
    seed: str = "1",
    path: Sequence[Path] = (),
) -> list[Sent]:
    """Return the function `f` of each program; a program is a text, or a text and a file name."""
    named = [one if isinstance(one, tuple) else (one, "program.py") for one in programs]
    answers = asked(_DRIVER, named, folder, seed, path)
    return [Sent(one, tuple(why), *again, sent) for one, why, again, sent in answers]


def in_worker(sent: Sequence[Sent], folder: Path, path: Sequence[Path] = ()) -> list[str]:
    """Return what each function gives for 3, in a new process that only unpickles."""
    shown: list[str] = asked(_WORKER, [one.pickled for one in sent], folder, "0", path)
    return shown
