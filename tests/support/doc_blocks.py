"""Runs the blocks of code of a documentation page, in their order, as one program.

- ```python``` is executed; the blocks of a page share their names. With `title="name.py"` it is
  written to that file instead.
- ```text title="output"``` is what the block before it printed; `...` stands for anything.
- ```console``` has lines `$ command`, each with what it prints (checked unless there is nothing).
  Commands are `durable-shuffle`, run in this process, and `python` and `cat`.
- A comment `<!-- skip: next "why" -->` in the page's source leaves the next block out.
- A comment `<!-- invisible-code: python ... -->` is executed, and readers do not see it.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import SkipTest

from markdown_it import MarkdownIt
from sybil import Document, Example
from sybil.parsers.abstract import AbstractCodeBlockParser
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer
from typer.testing import CliRunner

from durable_shuffle.jobs.cli.app import app

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
RUN = ("python", "console")
SHOWN = ("text", "toml", "json", "yaml", "hex")
"""Languages of blocks that are data; everything else in a page is run."""
ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def same(expected: str, found: str, what: str) -> str | None:
    """Return what a failure shows, None if the texts agree."""
    if doctest.OutputChecker().check_output(expected, found, FLAGS):
        return None
    return f"{what}\nexpected:\n{expected}\nfound:\n{found}"


@dataclass
class PageRun:
    """What became of the blocks of one page."""

    run: int = 0
    skipped: list[str] = field(default_factory=list)
    printed: str = ""
    """By the last block that was executed."""

    def python(self, example: Example) -> str | None:
        """Execute a block; line numbers are those of the page."""
        lines = "\n" * (example.line + example.parsed.line_offset)
        with redirect_stdout(StringIO()) as output:
            exec(compile(lines + example.parsed, example.path, "exec"), example.namespace)
        self.printed = output.getvalue()
        return None

    def file(self, example: Example) -> str | None:
        """Write a block that has a file's name."""
        Path(example.region.lexemes["title"]).write_text(example.parsed)
        return None

    def output(self, example: Example) -> str | None:
        """Compare with what the block before printed."""
        return same(example.parsed, self.printed, "printed something else")

    def console(self, example: Example) -> str | None:
        """Run commands one by one and compare what they print."""
        text = example.parsed.replace("\\\n", "")
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            printed = run_command(shlex.split(command, comments=True))
            failure = same(expected, printed, command) if expected.strip() else None
            if failure:
                return failure
        return None


@cache
def infos(path: Path) -> tuple[str, ...]:
    """Info lines of all blocks of a page, as a Markdown parser of another make sees them.

    A block that is indented instead of fenced has none: "".
    """
    tokens = MarkdownIt().parse(path.read_text())
    return tuple(t.info.strip() for t in tokens if t.type in ("fence", "code_block"))


def runnable(path: Path) -> int:
    """How many blocks of a page are to be run."""
    return sum(i.split()[0] in RUN or i == 'text title="output"' for i in infos(path) if i)


def run_command(words: list[str]) -> str:
    """Return what a command printed; fails unless it ends well."""
    if words[0] == "durable-shuffle":
        result = CliRunner().invoke(app, words[1:], prog_name="durable-shuffle")
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result.stdout
    if words[0] == "cat":
        return "".join(Path(name).read_text() for name in words[1:])
    assert words[0] == "python", f"{words}: not a command that can be run here; mark the block"
    done = subprocess.run(
        [sys.executable, *words[1:]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def _fenced(info: str, name: str, evaluator: Callable[[Example], str | None]) -> Any:
    """A parser of fenced blocks with exactly this info line."""
    lexer = RawFencedCodeBlockLexer(re.compile(f"(?P<arguments>{info})$\n", re.MULTILINE))

    class Parser(AbstractCodeBlockParser):
        language = name

        def __call__(self, document: Document) -> Any:
            for region in self.lexers(document):
                region.parsed, region.evaluator = region.lexemes["source"], evaluator
                yield region

    return Parser([lexer])


def run_page(path: Path, namespace: Mapping[str, Any]) -> PageRun:
    """Run all blocks of a page in the current folder.

    Raises:
        SybilFailure: an output differs.
    """
    page = PageRun()
    parsers = [
        SkipParser(),
        CodeBlockParser("python", page.python),
        CodeBlockParser("console", page.console),
        _fenced('python title="(?P<title>[^"]+)"', "file", page.file),
        _fenced('text title="output"', "output", page.output),
    ]
    document = Document.parse(str(path), *parsers)
    document.namespace.update(namespace, __name__="__main__")
    for example in document.examples():
        counts = document.text.startswith("```", example.region.start)  # what readers see
        try:
            example.evaluate()
            page.run += counts
        except SkipTest as skip:
            page.skipped.append(str(skip))
    return page
