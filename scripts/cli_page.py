"""Write docs/cli.md: what `--help` of every command says, as it says it.

With `--check` nothing is written: exit status 1 says that the page is out of date.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import typer.main
from typer.testing import CliRunner

from durable_shuffle.jobs.cli.app import COMMANDS, app, imported

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
HEAD = """# Commands

`durable-shuffle` comes with the extra `cli`. This is what each command says with `--help`, written
by `scripts/cli_page.py`. URLs and options: [storage](storage.md).
"""


def commands(found: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, groups before what they hold."""
    yield path
    for name, inner in getattr(found, "commands", {}).items():
        whole = imported(name) if not path and name in COMMANDS else inner
        yield from commands(whole, (*path, name))


def help_of(path: tuple[str, ...]) -> str:
    """Return the help of one command, 100 columns wide."""
    width = {"COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    result = CliRunner().invoke(
        app, [*path, "--help"], prog_name="durable-shuffle", env=width, terminal_width=100
    )
    if result.exit_code:
        raise SystemExit(f"{path}: {result.output}")
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for path in commands(typer.main.get_command(app)):
        title = " ".join(("durable-shuffle", *path))
        parts.append(f"## {title}\n\n```text\n{help_of(path)}\n```\n")
    return "\n".join(parts)


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    if parser.parse_args().check:
        if PAGE.read_text() == render():
            return 0
        sys.stderr.write(f"{PAGE.name} is out of date: run `make docs`\n")
        return 1
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
