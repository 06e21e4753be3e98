"""Type checkers accept the public names as users write them, and notice misuse."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("public_api.py")
WRONG = {
    'job="nightly"': "job=7",
    "reduce=Grouped(lambda table: table)": "reduce=7",
    "assert_type(durable.generation, int)": "assert_type(durable.generation, str)",
    'resume="exact"': 'resume="sloppy"',
    "max_retries=3": 'max_retries="3"',
}
"""What a user could get wrong: what stands in the file, and what it becomes."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "command",
    [("mypy", "--strict"), ("pyright", "--pythonpath", sys.executable)],
    ids=["mypy", "pyright"],
)
def test_public_names_have_the_types_that_users_see(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    """The file has no error and each type is as asserted; each wrong line has one of its own.

    A name that were `Any` would accept everything.
    """
    text = FILE.read_text()
    for right, wrong in WRONG.items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    misuse = tmp_path / "misuse.py"
    misuse.write_text(text)
    wrong_lines = {
        n for n, line in enumerate(text.splitlines(), 1) if any(w in line for w in WRONG.values())
    }
    done = subprocess.run(
        [sys.executable, "-m", *command, str(FILE), str(misuse)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert f"{FILE.name}:" not in said, said
    assert {n for n in wrong_lines if f"misuse.py:{n}:" in said} == wrong_lines, said
