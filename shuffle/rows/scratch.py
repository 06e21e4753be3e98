"""Sorted runs in local scratch space: written once, read back in order, gone with the process.

The files have no names, so that a killed process leaves nothing behind. This is not storage: no run
outlives the attempt that wrote it.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO

import pyarrow as pa

from durable_shuffle.serialization.errors import UnavailableError


class Run:
    """Record batches in a file without a name. Close it to free the space."""

    def __init__(self, file: IO[bytes], reader: pa.RecordBatchFileReader) -> None:
        self._file, self._reader = file, reader
        self._next = 0

    @property
    def more(self) -> bool:
        """True while there is another batch."""
        return self._next < int(self._reader.num_record_batches)

    def read(self) -> pa.RecordBatch:
        """Return the next batch."""
        batch = self._reader.get_batch(self._next)
        self._next += 1
        return batch

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


class Scratch:
    """Writes runs to a local folder."""

    def __init__(self, folder: str | None) -> None:
        """
        Args:
            folder: None for the system's folder for temporary files (`TMPDIR`).
        """
        self._folder = folder
        self.written_bytes = 0

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Run:
        """Write a run of non-empty batches.

        Raises:
            UnavailableError: the folder cannot be written or is full.
        """
        try:
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - the run closes it
        except OSError as error:
            raise self._refused(error) from error
        options = pa.ipc.IpcWriteOptions(use_threads=False)
        try:
            sink = pa.PythonFile(file, "w")
            with pa.ipc.new_file(sink, schema, options=options) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            self.written_bytes += file.tell()
            file.seek(0)
            return Run(file, pa.ipc.open_file(pa.PythonFile(file, "r")))
        except OSError as error:
            file.close()
            raise self._refused(error) from error
        except BaseException:
            file.close()
            raise

    def _refused(self, error: OSError) -> UnavailableError:
        where = self._folder or tempfile.gettempdir()
        return UnavailableError(
            f"scratch space cannot be written: folder={where!r} {error.strerror}; name another "
            "one with settings.scratch_folder"
        )


def slices(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of at most `rows` rows; nothing is copied."""
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
