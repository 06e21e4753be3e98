"""The data source `durable_shuffle`, as Spark knows it. Options: `options.py`; guide:
docs/streaming.md.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from durable_shuffle.jobs.streaming.options import read_options, write_options
from durable_shuffle.jobs.streaming.reading import BatchReader, stage_of
from durable_shuffle.jobs.streaming.schemas import spark_schema, stored_schema
from durable_shuffle.jobs.streaming.stream_reader import StreamReader
from durable_shuffle.jobs.streaming.writing import BatchWriter, StreamWriter
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.stream.scan import newest_message

FORMAT = "durable_shuffle"


class DurableShuffleSource(DataSource):
    """Spark data source that reads and writes a stage of a job, as a table or as a stream."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = read_options(self.options, stream=True)
        stage = stage_of(options)
        return spark_schema(stored_schema(stage, newest_message(stage)), options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, stream=False)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(self.options, stream=True), schema, SystemClock())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001
        if overwrite:
            raise InvalidInputError(
                "output mode complete would write all rows anew in each batch: use append or update"
            )
        return StreamWriter(write_options(self.options), schema)
