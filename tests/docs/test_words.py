"""The pages for users stay short, quote errors as the code says them, and link to where they lead.

A page for users is one that the navigation shows. `cli.md` and `api.md` do not count: they are
written from the texts of the commands and of the code.
"""

import ast
import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from doc_blocks import ROOT

WRITTEN = {"cli.md", "api.md"}
NAVIGATION = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
USERS = [ROOT / "docs" / name for name in NAVIGATION if name not in WRITTEN]
ABOUT = ("comparison.md", "guarantees.md", "how-it-works.md")
TASKS = [path for path in USERS if path.name not in ABOUT]
"""Pages by which somebody does something: each has code that runs, and a variant for S3."""
PACKAGES = ("serialization", "shuffle", "recovery", "jobs")
QUOTED = re.compile(r"^\*\*`(.+?)`\*\*", re.M)
"""An error in bold at the beginning of a line: a text to search for."""
OTHERS = (
    "Failed to find the data source: durable_shuffle",
    "403`, `AccessDenied`, `Forbidden",
    "Unable to locate credentials",
    "The request signature we calculated does not match",
    "Could not connect to the endpoint URL",
    "The specified bucket does not exist",
)
"""Said by Spark, Java and S3."""


BESIDE = {"benchmarks.md"}
"""Outside docs/internals, but linked from pages only."""


def test_the_navigation_has_every_page_in_whatever_folder() -> None:
    """A page that this file does not see would have no limit."""
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("internals/")} == {*NAVIGATION, *BESIDE}
    assert len(NAVIGATION) == len(set(NAVIGATION))
    assert [page for page in NAVIGATION if "/" in page] != []


def words(path: Path) -> int:
    """How many words a page has, code and links included."""
    return len(path.read_text().split())


def test_the_first_page_is_short() -> None:
    """900 words are what somebody reads before they decide."""
    assert words(ROOT / "README.md") <= 900


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_a_page_is_short(path: Path) -> None:
    """A page that outgrows this is two pages, or has details that belong to docs/internals."""
    assert words(path) <= 1200


def test_all_pages_together_are_short() -> None:
    """A user can read all of it within an hour."""
    assert len(USERS) > 15
    assert sum(map(words, USERS)) <= 15_000


@pytest.mark.parametrize("path", TASKS, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_a_page_has_an_example_and_says_what_changes_on_s3(path: Path) -> None:
    """Most people try it in a folder and then run it on S3."""
    text = path.read_text()
    assert "```python\n" in text
    assert "s3://my-bucket/" in text


def test_no_figure_of_the_benchmark_needs_its_letters_on_the_first_page() -> None:
    """Names of workloads and faults, and aims, are for docs/benchmarks.md."""
    assert not re.search(r"\b([WF]\d+|bars?)\b", (ROOT / "README.md").read_text())


def test_links_of_the_first_page_work_on_pypi() -> None:
    """They are absolute, below an address of the project, and lead to files that exist."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    for link in links:
        assert not urlsplit(link).scheme, link
        assert (ROOT / urlsplit(link).path).exists(), link


@cache
def texts_of_the_code() -> tuple[str, ...]:
    """All texts in the code. An f-string has several, with what it fills in between them."""
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(" ".join(node.value.split()))
    return tuple(found)


def unknown(quoted: str) -> list[str]:
    """Return the parts of a quoted error, between its dots, that the code does not say."""
    parts = [part.strip(" ,:;") for part in re.split(r"\.\.\.|'[^']*'", quoted)]
    known = (*texts_of_the_code(), *OTHERS)
    return [p for p in parts if len(p) > 3 and not any(p in text for text in known)]


def test_quoted_errors_are_those_of_the_code() -> None:
    """Somebody pastes an error into a search: the page has its words."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = [text for text in QUOTED.findall(page) if " " in text]
    assert len(quoted) > 20
    assert {text: unknown(text) for text in quoted if unknown(text)} == {}


def test_an_error_that_the_code_does_not_say_is_found() -> None:
    """The comparison can fail."""
    assert unknown("executors do not share ... with the driver") == []
    assert unknown("executors share nothing ... with the driver") == ["executors share nothing"]


def cited(text: str) -> set[int]:
    """Numbers of the sources that a text names: `[2, 3]`."""
    return {
        int(n) for group in re.findall(r"\[(\d[\d, ]*)\](?!\()", text) for n in group.split(",")
    }


def test_statements_about_others_have_their_source() -> None:
    """Every cell about another system names a source that is listed, and no source is left over."""
    page, _, sources = (ROOT / "docs/comparison.md").read_text().partition("## Sources")
    tables = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    cells = [row[1:-1] for row in tables if row[0].strip() not in ("when", "what you need", "---")]
    assert len(cells) > 6
    assert [cell for row in cells for cell in row if not cited(cell)] == []
    assert cited(page) == {int(n) for n in re.findall(r"^\| (\d+) \|", sources, re.M)}
