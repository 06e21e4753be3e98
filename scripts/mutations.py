"""Put naive variants of the code in place, one at a time, and see the tests notice.

Each variant is a textual change of one source file, made in a copy of the repository, and the tests
that must go red. `--write` writes docs/internals/mutations.md. A variant that survives is a missing
test.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "docs" / "internals" / "mutations.md"
COPIED = ("serialization", "shuffle", "recovery", "jobs", "bench", "src", "tests", "pyproject.toml")
VIEWS = "tests/views/"
CRASHES = "tests/faults/test_consumer_crash_points.py"


@dataclass(frozen=True)
class Mutation:
    """A naive variant."""

    variant: str
    """Its number in the list of naive variants, or what it is a variant of."""
    words: str
    file: str
    old: str
    new: str
    tests: str
    """What pytest is given; at least one of these tests must fail."""


def load() -> list[Mutation]:
    """Return all variants."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import mutations_of_commands
    import mutations_of_compaction
    import mutations_of_logs
    import mutations_of_recovery
    import mutations_of_shuffle

    return [
        *mutations_of_logs.MUTATIONS,
        *mutations_of_shuffle.MUTATIONS,
        *mutations_of_compaction.MUTATIONS,
        *mutations_of_recovery.MUTATIONS,
        *mutations_of_commands.MUTATIONS,
    ]


def check(folder: Path, mutation: Mutation) -> str:
    """Return the file's text; what is to change must be there exactly once."""
    text = (folder / mutation.file).read_text()
    if text.count(mutation.old) != 1:
        raise SystemExit(
            f"{mutation.variant}: {mutation.file} holds {text.count(mutation.old)} times: "
            f"{mutation.old!r}"
        )
    return text


def mutate(copy: Path, mutation: Mutation) -> None:
    """Change the file in the copy."""
    text = check(copy, mutation)
    (copy / mutation.file).write_text(text.replace(mutation.old, mutation.new))


def run(mutation: Mutation) -> tuple[bool, str, float]:
    """Return (killed, the first test that failed, seconds)."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, symlinks=True)
            else:
                shutil.copy(source, copy / name)
        mutate(copy, mutation)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "(sampled or not soak) and not live"]
        env = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*command, *mutation.tests.split(" ")],
            cwd=copy,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    # 1 is "tests failed"; anything else, a broken import too, says nothing about the tests
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1) or (done.returncode and not failed):
        raise SystemExit(f"{mutation.variant}: pytest broke\n{done.stdout[-3000:]}{done.stderr}")
    by = failed[0].split(" - ")[0].split(" ", 1)[1] if failed else ""
    return done.returncode == 1, by, time.monotonic() - start


def page(results: list[tuple[Mutation, str]]) -> str:
    """Return the page that lists variants and what kills them."""
    lines = [
        "# Naive variants and the tests that notice them",
        "",
        "Written by `scripts/mutations.py --write`. Each variant was put in place alone, in a copy",
        "of the code, and the test named is the first that failed.",
        "",
        "| variant | what is changed | file | killed by |",
        "|---|---|---|---|",
    ]
    for mutation, by in results:
        verdict = f"`{by}`" if by else "**survived**"
        lines.append(f"| {mutation.variant} | {mutation.words} | `{mutation.file}` | {verdict} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the variants; exit status 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only variants whose name or words contain this")
    parser.add_argument("--write", action="store_true", help="write docs/internals/mutations.md")
    parser.add_argument("--check", action="store_true", help="only see that each still applies")
    options = parser.parse_args()
    if options.check:
        stale = []
        for mutation in load():
            try:
                check(ROOT, mutation)
            except SystemExit as error:
                stale.append(str(error))
            sys.stdout.write(f"{mutation.words}\n")
        sys.stderr.write("\n".join(stale))
        return 1 if stale else 0
    results: list[tuple[Mutation, str]] = []
    for mutation in load():
        if options.k not in f"{mutation.variant} {mutation.words}":
            continue
        killed, by, seconds = run(mutation)
        results.append((mutation, by))
        verdict = f"killed by {by}" if killed else "SURVIVED"
        sys.stdout.write(f"{mutation.variant}: {mutation.words}: {verdict} ({seconds:.1f} s)\n")
        sys.stdout.flush()
    if options.write:
        RESULT.write_text(page(results))
    return int(any(not by for _, by in results))


if __name__ == "__main__":
    sys.modules["mutations"] = sys.modules["__main__"]  # for the list, which imports Mutation
    raise SystemExit(main())
