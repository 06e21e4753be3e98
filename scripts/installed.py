"""Installs what is in dist/ into fresh environments, one for each extra, and runs README's program.

The program runs twice in each: the second run must reuse what the first one stored. `make dist`
builds and then calls this; it takes about a minute per environment, most of it PySpark's size.
"""

import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_FOR_USERS = ("dev", "rivals")
"""Extras of this project's own tests and benchmarks."""


def program(readme: str) -> str:
    """Return the first Python block of README."""
    found = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    if found is None:
        raise SystemExit("README.md has no Python block")
    return found[1]


def extras(pyproject: str) -> list[str]:
    """Return the extras that users install."""
    every = tomllib.loads(pyproject)["project"]["optional-dependencies"]
    return [name for name in every if name not in NOT_FOR_USERS]


def run(command: list[str], folder: Path) -> str:
    """Return what a command prints.

    Raises:
        SystemExit: it failed; with what it said.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def try_out(archive: Path, extra: str, text: str, folder: Path) -> None:
    """Install an archive with an extra beside PySpark, and run the program twice.

    Raises:
        SystemExit: a step failed, or the second run did not reuse the first one's rows.
    """
    run([sys.executable, "-m", "venv", "env"], folder)
    python = str(folder / "env" / "bin" / "python")
    wanted = ",".join(dict.fromkeys(("spark", extra)))
    run([python, "-m", "pip", "install", "-q", f"{archive}[{wanted}]"], folder)
    run([python, "-m", "pip", "check"], folder)
    (folder / "program.py").write_text(text, encoding="utf-8")
    for word in ("computed", "reused"):
        printed = run([python, "program.py"], folder)
        if word not in printed or "1000\n" not in printed:
            raise SystemExit(f"{archive.name}[{wanted}]: expected {word}, printed\n{printed}")
    if extra in ("cli", "demo", "bench"):
        command = str(folder / "env" / "bin" / "durable-shuffle")
        if "nightly" not in run([command, "ls", "shuffle-data"], folder):
            raise SystemExit(f"{archive.name}[{wanted}]: `durable-shuffle ls` shows no job")


def tried(archives: list[Path], wanted: list[str]) -> Iterator[tuple[str, str, float]]:
    """Yield archive, extra and seconds of each installation that works."""
    text = program((ROOT / "README.md").read_text(encoding="utf-8"))
    for archive in archives:
        for extra in wanted:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try_out(archive.resolve(), extra, text, Path(folder))
            yield archive.name, extra, time.monotonic() - start


def main(folder: str = "dist", *wanted: str) -> None:
    """Try each archive of a folder with each extra, or with those that are named."""
    archives = sorted(p for p in Path(folder).iterdir() if p.name.endswith((".whl", ".tar.gz")))
    if not archives:
        raise SystemExit(f"{folder} has no wheel and no source archive: run `make dist`")
    names = extras((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name, extra, seconds in tried(archives, list(wanted) or names):
        sys.stdout.write(f"{name}  {extra}  installed and ran twice, {seconds:.0f} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
