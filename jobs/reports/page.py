"""Elements that escape what they are given, and the parts of pages. Pure.

A page is one file: no script, and nothing is fetched from anywhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Literal


class Html(str):
    """Markup. `element` escapes every other text."""

    __slots__ = ()


def element(tag: str, *inside: str, **attributes: object) -> Html:
    """Return an HTML or SVG element.

    Args:
        inside: `Html` stays as it is; any other text is escaped.
        attributes: `_` stands for `-`, a last one is dropped. Floats get one decimal. An attribute
            that is None is left out.
    """
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    shown = "".join(
        f' {names[name]}="{escape(f"{value:.1f}" if isinstance(value, float) else str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{shown}>{joined(inside)}</{tag}>")


def joined(parts: Iterable[str]) -> Html:
    """Return the parts as one text; parts that are no `Html` are escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


@dataclass(frozen=True, slots=True)
class Value:
    """A table's cell with a verdict on it."""

    text: str
    verdict: Literal["good", "bad", "wrap"]


Cell = str | Value | None


def page(title: str, body: Sequence[str]) -> str:
    """Return a whole HTML document."""
    style = Html(files(__package__).joinpath("page.css").read_text(encoding="utf-8"))
    head = joined(
        [
            Html('<meta charset="utf-8">\n'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
            Html('<link rel="icon" href="data:,">\n'),  # else browsers ask for a favicon
            element("title", title),
            element("style", style),
        ]
    )
    main = element("main", *(joined([part, "\n"]) for part in body))
    whole = element("html", element("head", head), "\n", element("body", main), lang="en")
    return f"<!doctype html>\n{whole}\n"


def heading(title: str, soft: str, failures: Sequence[str] | None, good: str = "") -> Html:
    """Return the top of a page; `failures` None means that nothing was judged."""
    parts = [element("h1", title), element("p", soft, class_="soft")]
    if failures is not None:
        text = f"{len(failures)} checks failed" if failures else good
        parts.append(element("div", text, class_="verdict bad" if failures else "verdict"))
        parts.append(plain_list(failures))
    return joined(parts)


def tiles(entries: Sequence[tuple[str, str, str]]) -> Html:
    """Return entries of (label, value, note) as large figures."""
    names = ("label", "value", "beside")
    parts = [
        [element("div", text, class_=name) for name, text in zip(names, entry, strict=True)]
        for entry in entries
    ]
    return element("div", *(element("div", *tile, class_="tile") for tile in parts), class_="tiles")


def section(title: str, text: str = "") -> Html:
    """Return a heading with a sentence below it."""
    return joined([element("h2", title), *([element("p", text, class_="soft")] if text else [])])


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], *, left: int) -> Html:
    """Return a table; columns from `left` on hold numbers. A row whose first cell is not empty
    begins a group."""
    names = [element("th", name, class_="n" if i >= left else None) for i, name in enumerate(head)]
    lines = [
        element(
            "tr",
            *(_cell(cell, number=i >= left) for i, cell in enumerate(row)),
            class_="first" if row and row[0] else None,
        )
        for row in rows
    ]
    whole = element("table", element("thead", element("tr", *names)), element("tbody", *lines))
    return element("div", whole, class_="card scroll")


def plain_list(lines: Sequence[str]) -> Html:
    """Return lines one below the other, nothing if there are none."""
    entries = [element("li", line) for line in lines]
    return element("ul", *entries, class_="plain") if entries else Html()


def code(text: str) -> Html:
    """Return text as typed."""
    return element("code", text)


def _cell(cell: Cell, *, number: bool) -> Html:
    classes = ["n"] if number else []
    if isinstance(cell, Value):
        classes.append(cell.verdict)
        cell = cell.text
    return element("td", cell or "", class_=" ".join(classes) or None)
