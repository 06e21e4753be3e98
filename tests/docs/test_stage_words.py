"""One word per fact: the glossary and everything that users read have the words of one list."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from durable_shuffle.jobs.reports.job_history import StageHistory
from durable_shuffle.shuffle.base.words import StageAction, StageStatus

ROOT = Path(__file__).parents[2]
_GONE = re.compile(
    r"\b(unsealed|half-written|partly committed|GENERATION|INCARNATION|afresh|producers_run)\b"
)
"""Other words for these facts, which stood in outputs and pages once."""


@pytest.mark.parametrize("words", [StageStatus, StageAction])
def test_the_glossary_has_every_word(words: type[StageStatus] | type[StageAction]) -> None:
    text = (ROOT / "docs/internals/glossary.md").read_text()
    rows = [f"| {word} | {word.meaning} |" for word in words]
    assert "\n".join(rows) in text


def test_pages_have_no_other_word() -> None:
    """Pages for users; those of internals explain records by their own names."""
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/platforms").iterdir(),
    ]
    found = {page.name: sorted(set(_GONE.findall(page.read_text()))) for page in pages}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_page_has_the_words_of_the_commands() -> None:
    """A stage that was sealed and lost data is damaged there, too."""
    sealed = StageHistory("a", 2, sealed=1.0)
    assert [sealed.status, replace(sealed, damaged=True).status] == ["stored", "damaged"]
    assert StageHistory("a", 2).status == "partial"
    assert StageHistory("a", 2, ended=1).status == "open, 1 of 2 producers ended"


def test_words_print_as_text() -> None:
    """Users print lists of them, compare them with texts, and write them as JSON."""
    assert str([StageAction.REUSED, StageStatus.OPEN]) == "['reused', 'open']"
    assert StageAction.LEFT_TO_SPARK == "left to Spark"
