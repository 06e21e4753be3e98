"""Lay the package out as the wheel does, in build/house, and draw which folder imports which.

The package's folders stand at the top of the repository, and `src/durable_shuffle` holds links to
them. Tools that do not follow links see no import between folders; in build/house they see all.
Prints a table and writes build/house/folders.mmd, a Mermaid flowchart.
"""

import shutil
import sys
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
LAID_OUT = ROOT / "build" / "house"
PACKAGE = "durable_shuffle"


def lay_out() -> Path:
    """Copy the package with real folders in place of links; return its folder."""
    package = LAID_OUT / PACKAGE
    shutil.rmtree(LAID_OUT, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / PACKAGE, package, ignore=ignored)
    return package


def folder_of(module: str, package: Path) -> str:
    """Return the folder of a module: two levels, as in ARCHITECTURE.md."""
    parts = module.split(".")[1:]
    is_folder = package.joinpath(*parts).is_dir()
    return "/".join(parts[:2] if is_folder else parts[:-1][:2]) or "."


def main() -> None:
    """Print and draw."""
    package = lay_out()
    sys.path.insert(0, str(LAID_OUT))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    arrows, files, lines = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
    for module in graph.modules:
        here, path = folder_of(module, package), package.joinpath(*module.split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        files[here] += 1
        lines[here] += len(file.read_text().splitlines())
        for imported in graph.find_modules_directly_imported_by(module):
            if (there := folder_of(imported, package)) != here:
                arrows[here, there] += 1
    for here in sorted(files):
        below = sorted(there for start, there in arrows if start == here)
        row = f"{here:26} {files[here]:4} files {lines[here]:6} lines   -> {', '.join(below)}\n"
        sys.stdout.write(row)
    drawn = (f'  {a}["{a}"] -->|{n}| {b}["{b}"]' for (a, b), n in sorted(arrows.items()))
    chart = LAID_OUT / "folders.mmd"
    chart.write_text("\n".join(["flowchart LR", *drawn]) + "\n")
    sys.stdout.write(f"{files.total()} files, {lines.total()} lines; drawn in {chart}\n")


if __name__ == "__main__":
    main()
