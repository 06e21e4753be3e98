"""What `make dist` builds works where it is installed."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "installed.py"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_archive_works_with_each_extra(installed: dict[str, Any], tmp_path: Path) -> None:
    """In a fresh environment: README's program stores rows, and its second run reuses them."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    archives = sorted(tmp_path.iterdir())
    assert [path.suffix for path in archives] == [".whl", ".gz"]
    wanted = installed["extras"]((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {"spark", "cli", "s3", "gcs", "azure", "hdfs", "fast", "demo"} <= set(wanted)
    assert len(list(installed["tried"](archives, wanted))) == 2 * len(wanted)


def test_a_program_that_reuses_nothing_is_an_error(
    installed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check looks at what the program prints, not only at whether it ends."""
    printed = iter(["", "", "", "1000\ncomputed", "1000\ncomputed"])
    monkeypatch.setitem(installed["try_out"].__globals__, "run", lambda *_: next(printed))
    with pytest.raises(SystemExit, match="expected reused"):
        installed["try_out"](Path("a.whl"), "fast", "", tmp_path)
