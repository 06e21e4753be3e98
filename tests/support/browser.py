"""A real headless Chromium: opens a page from a file, says what it sees and complains about."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True, slots=True)
class Opened:
    """What became of a page."""

    dom: str
    """The document as the browser has it."""
    complaints: list[str]
    """Lines that its console got."""


def chromium() -> str:
    """Return the browser's program; there is no skipping: a page nobody opened is not tested."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise AssertionError(
            "no Chromium on this machine: run `apt-get install chromium` (scripts/setup.sh does it "
            "when it may), or put chromium, google-chrome or chrome on the PATH"
        )
    return found


def open_page(page: Path, *, picture: Path | None = None, width: int = 1180) -> Opened:
    """Load a page; with `picture`, also store what one sees.

    Raises:
        AssertionError: there is no browser, or it failed.
    """
    done = _run(page, "--dump-dom", width=width)
    if picture is not None:
        _run(page, f"--screenshot={picture}", width=width)
        assert picture.exists(), "the browser made no picture"
    lines = done.stderr.splitlines()
    return Opened(done.stdout, [line for line in lines if "CONSOLE" in line])


def _run(page: Path, order: str, *, width: int) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="browser-") as profile:
        command = [
            chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={profile}",
            "--enable-logging=stderr", f"--window-size={width},2400",
            "--host-resolver-rules=MAP * ~NOTFOUND", order, page.resolve().as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"the browser failed: {done.stderr[-3000:]}"
    return done
