"""The types of what `DurableShuffle` returns, for annotations and for programs that read them."""

from durable_shuffle.jobs.stages.explanation import Explanation, StageExplanation
from durable_shuffle.jobs.stages.report import ConsumerReport, Report, StageReport
from durable_shuffle.jobs.stages.stored import StageInfo, VacuumedStage
from durable_shuffle.shuffle.base.words import StageAction, StageStatus

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
