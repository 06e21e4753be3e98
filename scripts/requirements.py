"""Write docs/requirements.md: every requirement with the tests that carry it.

The ids and their meaning stand in docs/requirements.toml; the tests say themselves what they carry,
by `@pytest.mark.requirement("R-...")` on a function, a class, a module or one parametrised case.
With `--check` nothing is written: exit status 1 says that the page is out of date.
"""

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from mark_collector import MarkCollector  # noqa: E402

TABLE = ROOT / "docs" / "requirements.toml"
PAGE = ROOT / "docs" / "requirements.md"


def render(
    groups: dict[str, dict[str, str]], marks: Iterable[tuple[str, str]], path: Path = TABLE
) -> str:
    """Return the page.

    Args:
        groups: prefix of the ids -> title, source, and number -> meaning.
        marks: (requirement, test) pairs; repeated pairs are fine.

    Raises:
        SystemExit: a test carries an id that the table does not know.
    """
    tests: dict[str, set[str]] = defaultdict(set)
    for requirement, test in marks:
        tests[requirement].add(test)
    lines = [
        "# Requirements and their tests",
        "",
        "Written by `make requirements` from `requirements.toml` and the marks on the tests.",
        '"not yet" means that no test carries the requirement.',
    ]
    for prefix, group in groups.items():
        meanings = {f"{prefix}-{n}": text for n, text in group.items() if n.isdigit()}
        lines += ["", f"## {prefix}: {group['title']}", ""]
        lines += [f"{group['source']}.", ""]
        lines += ["| requirement | meaning | tests |", "|---|---|---|"]
        for name, meaning in meanings.items():
            found = "<br>".join(f"`{test}`" for test in sorted(tests.pop(name, ())))
            lines.append(f"| {name} | {meaning} | {found or 'not yet'} |")
    if tests:
        raise SystemExit(f"{path.name} does not know: " + ", ".join(sorted(tests)))
    return "\n".join(lines) + "\n"


def collect() -> list[tuple[str, str]]:
    """Return the marks of all tests and benchmarks, soak included."""
    collector = MarkCollector()
    with redirect_stdout(StringIO()) as said:
        status = pytest.main(["--collect-only", "-qq", "-m", "", str(ROOT)], plugins=[collector])
    if status != pytest.ExitCode.OK:
        raise SystemExit(f"{said.getvalue()}\nthe tests could not be collected: {status!r}")
    return collector.marks


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args()
    page = render(tomllib.loads(TABLE.read_text()), collect())
    if not options.check:
        PAGE.write_text(page)
        return 0
    if PAGE.read_text() == page:
        return 0
    sys.stderr.write("docs/requirements.md is out of date: run `make requirements`\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
