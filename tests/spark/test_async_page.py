"""The code in docs/async.md does what the page says."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "async.md"


def test_the_examples_run(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """All of the page's examples, one after the other, as one program."""
    monkeypatch.chdir(tmp_path)
    program: dict[str, Any] = {"__name__": "__main__", "spark": session}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        exec(example, program)
    said = capfd.readouterr().out.splitlines()
    assert said == [
        "[Row(country='CH', count=100), Row(country='IS', count=200)]",
        "300",
        "300",
        "['CH', 'IS', 'IS', 'CH']",
    ]
