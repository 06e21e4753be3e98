"""Write docs/internals/requirements.md: every requirement with the tests that carry it.

The ids and their meaning stand in docs/internals/requirements.toml; the tests say themselves what
they carry, by `@pytest.mark.requirement("R-...")` on a function, a class, a module or one
parametrised case. `mark_collector.py` says which of them drive the product. If none does, the table
says why the machine is enough. With `--check` nothing is written: exit status 1 says that the page
is out of date.
"""

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from mark_collector import MarkCollector  # noqa: E402

TABLE = ROOT / "docs" / "internals" / "requirements.toml"
PAGE = ROOT / "docs" / "internals" / "requirements.md"


Group = dict[str, Any]


def render(
    groups: dict[str, Group],
    marks: Iterable[tuple[str, str]],
    product: Collection[tuple[str, str]] = (),
    path: Path = TABLE,
) -> str:
    """Return the page.

    Args:
        groups: prefix of the ids -> title, source, number -> meaning, `machine`: number -> why the
            machine is the product, and `differs`: number -> what users get otherwise, and why.
        marks: (requirement, test) pairs; repeated pairs are fine.
        product: those of them whose test drives the product.

    Raises:
        SystemExit: a test carries an id that the table does not know; or no test drives the product
            and the table does not say why; or it says why although one does.
    """
    tests: dict[str, set[str]] = defaultdict(set)
    driven = {requirement for requirement, _ in product}
    wrong: list[str] = []
    for requirement, test in marks:
        tests[requirement].add(test)
    lines = [
        "# Requirements and their tests",
        "",
        "Written by `make requirements` from `requirements.toml` and the marks on the tests.",
        '"not yet" means that no test carries the requirement. "Product": one of its tests or more',
        'drive what users run. "Machine": its tests drive a pure part, which the product calls.',
        '"Differs": what users get otherwise, or do not meet, and why.',
    ]
    for prefix, group in groups.items():
        meanings = {f"{prefix}-{n}": text for n, text in group.items() if n.isdigit()}
        lines += ["", f"## {prefix}: {group['title']}", ""]
        lines += [f"{group['source']}.", ""]
        lines += ["| requirement | meaning | proven | tests |", "|---|---|---|---|"]
        for name, meaning in meanings.items():
            why = group.get("machine", {}).get(name.rpartition("-")[2])
            carried = sorted(tests.pop(name, ()))
            if carried and (why is None) is not (name in driven):
                wrong.append(name)
            proven = "product" if name in driven else f"machine: {why}" if carried else "not yet"
            if differs := group.get("differs", {}).get(name.rpartition("-")[2]):
                meaning = f"{meaning} **Differs:** {differs}."
            found = "<br>".join(f"`{test}`" for test in carried)
            lines.append(f"| {name} | {meaning} | {proven} | {found or 'not yet'} |")
    if tests:
        raise SystemExit(f"{path.name} does not know: " + ", ".join(sorted(tests)))
    if wrong:
        raise SystemExit(
            f"{path.name} must say why the machine is enough where no test drives the product, and "
            f"nowhere else: {', '.join(wrong)}"
        )
    return "\n".join(lines) + "\n"


def collect() -> MarkCollector:
    """Return the marks of all tests and benchmarks, soak included."""
    collector = MarkCollector()
    with redirect_stdout(StringIO()) as said:
        status = pytest.main(["--collect-only", "-qq", "-m", "", str(ROOT)], plugins=[collector])
    if status != pytest.ExitCode.OK:
        raise SystemExit(f"{said.getvalue()}\nthe tests could not be collected: {status!r}")
    return collector


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args()
    found = collect()
    page = render(tomllib.loads(TABLE.read_text()), found.marks, found.product)
    if not options.check:
        PAGE.write_text(page)
        return 0
    if PAGE.read_text() == page:
        return 0
    sys.stderr.write("docs/internals/requirements.md is out of date: run `make requirements`\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
