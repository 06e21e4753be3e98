"""The code in docs/streaming.md does what the page says."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "streaming.md"


def test_the_examples_run(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """All of the page's examples, one after the other, as one program; folders are a test's own."""
    monkeypatch.chdir(tmp_path)
    program: dict[str, Any] = {"__name__": "__main__", "spark": session}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        for folder in ("hop", "incoming", "copied", "checkpoints/write", "checkpoints/read"):
            # the JVM keeps the folder that it was started in
            example = example.replace(f'"{folder}"', f'"{tmp_path / folder}"')
        exec(example, program)
    said = capfd.readouterr().out.splitlines()
    assert said == ["1000 True", "143", "10"]
