"""The live view: what it shows of each stage."""

import threading

import pytest

from durable_shuffle.jobs.stages import progress as shown
from durable_shuffle.jobs.stages.report import StageReport


def report(producers: int, reused: int) -> StageReport:
    """A stage's report with these numbers; all others are not looked at."""
    values: dict[str, object] = dict.fromkeys(StageReport.__dataclass_fields__, 0)
    values |= {"decision": "resume", "producers": producers, "producers_reused": reused}
    return StageReport(**{**values, "data_bytes": 3 << 20})  # type: ignore[arg-type]


def test_bars_move_while_an_exchange_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers that committed are asked for while it runs; at its end: what it came to."""
    monkeypatch.setattr(shown, "_POLL_SECONDS", 0.01)
    asked = threading.Event()

    def committed() -> tuple[int, int]:
        asked.set()
        return 3, 8

    with shown.LiveProgress() as view:
        view.planned("query", 2, 1, 1)
        view.started(0, "exchange 0 hash(8)", committed)
        assert asked.wait(60)
        view.finished(0, "exchange 0 hash(8)", report(8, 5))
        view.started(1, "exchange 1 single(1)", lambda: (0, 0))
    text = capsys.readouterr().err
    assert "query: 2 exchanges, 1 committed, 1 to run" in text
    assert "8/8" in text
    assert "resume, 5 reused, 3.0 MiB" in text
    assert "exchange 1 single(1)" in text
