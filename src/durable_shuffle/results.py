"""The types of what `DurableShuffle` returns, for annotations and for programs that read them."""

from typing import TYPE_CHECKING

from durable_shuffle._names import resolver
from durable_shuffle.shuffle.base.words import StageAction, StageStatus

if TYPE_CHECKING:
    from durable_shuffle.jobs.stages.explanation import Explanation, StageExplanation
    from durable_shuffle.jobs.stages.report import ConsumerReport, Report, StageReport
    from durable_shuffle.jobs.stages.stored import StageInfo, VacuumedStage

__all__ = [
    "ConsumerReport",
    "Explanation",
    "Report",
    "StageAction",
    "StageExplanation",
    "StageInfo",
    "StageReport",
    "StageStatus",
    "VacuumedStage",
]

_MODULES = {
    "ConsumerReport": "durable_shuffle.jobs.stages.report",
    "Explanation": "durable_shuffle.jobs.stages.explanation",
    "Report": "durable_shuffle.jobs.stages.report",
    "StageExplanation": "durable_shuffle.jobs.stages.explanation",
    "StageInfo": "durable_shuffle.jobs.stages.stored",
    "StageReport": "durable_shuffle.jobs.stages.report",
    "VacuumedStage": "durable_shuffle.jobs.stages.stored",
}

__getattr__ = resolver(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
