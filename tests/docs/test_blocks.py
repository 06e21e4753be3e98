"""Blocks of code in the pages are of a kind that is run, or are marked, and the runner notices."""

from pathlib import Path

import pytest
from doc_blocks import PAGES, ROOT, RUN, SHOWN, infos, run_page
from sybil.example import SybilFailure


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_says_what_it_is(path: Path) -> None:
    """A block that is indented, or of an unknown language, would never be run."""
    assert [i for i in infos(path) if i.split(" ")[0] not in (*RUN, *SHOWN)] == []


PAGE = """
```python title="shop.py"
print("from the file")
```
```console
$ python shop.py   # runs it
from the ...
```
```python
n = 2
print("no", n)
```
```text title="output"
no 2
```
<!-- skip: next "needs a service" -->
```python
raise AssertionError
```
"""


def test_what_a_page_may_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, commands, code, its output, and blocks that are left out with a reason."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    page = run_page(tmp_path / "page.md", {})
    assert (page.run, page.skipped) == (4, ["needs a service"])


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("from the ...", "from nowhere", SybilFailure),
        ("no 2", "no 3", SybilFailure),
        ("n = 2", "n = 1 / 0", ZeroDivisionError),
        ("python shop.py", "python missing.py", AssertionError),
        ("python shop.py", "curl example.org", AssertionError),
        ("python shop.py", "durable-shuffle ls ./missing", AssertionError),
        ('<!-- skip: next "needs a service" -->', "", AssertionError),
    ],
)
def test_what_is_wrong_in_a_page_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    right: str,
    wrong: str,
    error: type[Exception],
) -> None:
    """Each kind of block can fail."""
    monkeypatch.chdir(tmp_path)
    assert right in PAGE
    (tmp_path / "page.md").write_text(PAGE.replace(right, wrong))
    with pytest.raises(error):
        run_page(tmp_path / "page.md", {})
