"""The documentation builds as a site without a warning, and every link in it leads somewhere.

The builder checks the links that it sees in the sources; here the built pages are read, navigation
included, as a browser would.
"""

import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a page makes a browser fetch by itself."""


class Page(HTMLParser):
    """The anchors of a page, where it leads, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if tag in LOADED and LOADED[tag] in found:
            self.loaded.add(found[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew from this checkout's pages."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "src").symlink_to(ROOT / "src")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-5000:]
    assert "No issues found" in said
    assert "warning" not in said.lower()
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """All pages that were built."""
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_source_became_a_page_that_somebody_finds(
    site: Path, pages: dict[Path, Page]
) -> None:
    """A page is in the navigation of mkdocs.yml, or in the list of internals."""
    sources = {
        p.relative_to(ROOT / "docs").with_suffix(".html") for p in (ROOT / "docs").rglob("*.md")
    }
    assert {path.relative_to(site) for path in pages} == sources
    menu = (ROOT / "mkdocs.yml").read_text()
    inside = {source for source in sources if f": {source.with_suffix('.md')}\n" not in menu}
    index = site / "internals" / "index.html"
    listed = {
        (index.parent / urlsplit(link).path).resolve().relative_to(site)
        for link in pages[index].links
        if urlsplit(link).path and not urlsplit(link).scheme
    }
    assert inside - listed == {Path("internals/index.html")}
    assert (
        f"({index.relative_to(site).with_suffix('.md')})"
        in (ROOT / "docs/how-it-works.md").read_text()
    )


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    """Pages and anchors of all links inside the site exist."""
    broken, checked = [], 0
    for path, page in pages.items():
        for link in page.links | page.loaded:
            url = urlsplit(link)
            if url.scheme or link.startswith("javascript"):
                continue
            checked += 1
            target = path if not url.path else (path.parent / unquote(url.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            anchored = (
                not url.fragment
                or target not in pages
                or unquote(url.fragment) in pages[target].ids
            )
            if not target.exists() or not anchored:
                broken.append(f"{path.name}: {link}")
    assert broken == []
    assert checked > 20 * len(pages)


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    """Whoever reads the site, from a disk without a network too, asks nobody else for anything."""
    foreign = {link for page in pages.values() for link in page.loaded if urlsplit(link).netloc}
    assert foreign == set()
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text().replace('"', ""), sheet.name


def test_the_commands_are_those_of_today() -> None:
    """docs/cli.md is what `--help` says now; `make docs` renews it."""
    command = [sys.executable, str(ROOT / "scripts" / "cli_page.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_links_of_the_pages_at_the_top(name: str) -> None:
    """What they link to in this checkout exists."""
    tokens = MarkdownIt().parse((ROOT / name).read_text())
    links = [
        str(child.attrs["href"])
        for token in tokens
        for child in token.children or ()
        if child.type == "link_open"
    ]
    inside = [link for link in links if not urlsplit(link).scheme]
    assert [link for link in inside if not (ROOT / urlsplit(link).path).exists()] == []
