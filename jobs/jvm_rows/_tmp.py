from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from durable_shuffle.jobs.jvm_rows.compiled import compiled
from durable_shuffle.jobs.jvm_rows.decoder import rows_of_blocks
from durable_shuffle.shuffle.write.segments import wanted_bytes

_TEXTS = ("encode.java", "held.java", "values.java", "body.java", "parts.java")


@cache
def encoder_text() -> str:
    folder = files("durable_shuffle.jobs.jvm_rows")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _TEXTS)


@dataclass(frozen=True)
class Encoding:
    kinds: str
    partitions: int
    placed: str
    stage_id: str
    memory_bytes: int
    frame_bytes: int
    max_frame_bytes: int
    compression: str


@dataclass
class Refused:
    reason: str


class JvmRows:
    def __init__(self, spark):
        self.spark = spark

    def frames(self, rdd: Any, how: Encoding) -> Any:
        wanted = wanted_bytes(how.frame_bytes, how.max_frame_bytes)
        return compiled(
            self.spark,
            rdd,
            encoder_text(),
            [
                how.kinds,
                how.partitions,
                how.placed,
                how.stage_id,
                how.memory_bytes,
                wanted,
                how.max_frame_bytes,
                how.compression,
                None,
            ],
        )

    def rows(self, blocks, schema, stored):
        return rows_of_blocks(blocks, schema, stored)


def probe(spark):
    return JvmRows(spark)
