"""Arrays made and read without pandas are those that pyarrow makes and reads itself."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.serialization.arrow_codec import array_of_one, arrow_of, numbers_of

MAP_AND_READ = """
import random, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.tasks import MapTasks, map_function, stored_rows
from durable_shuffle.shuffle.storage.local import LocalStorage
from small_stage import SMALL, SeededIds, new_stage, seal

def column(numbers):
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])

context = TaskContext._getOrCreate()
context._partitionId = context._attemptNumber = 0
columns = [column(np.array([5, 6, 7, 8])), column(np.array([1, 0, 1, 0], dtype=np.int32))]
batch = pa.RecordBatch.from_arrays([*columns, column(np.arange(4))], ["n", "id", "row"])
storage, ids = LocalStorage(Path(sys.argv[1])), SeededIds(random.Random(1))
stage = new_stage(storage, ids, pa.schema([batch.schema.field("n")]), partitions=2)
code = running_code()
write = map_function(MapTasks(stage, 1, SMALL, tries=1, code=code))
print([row for found in write(iter([batch])) for row in found.to_pylist()][0]["error"])
groups = [(0, 2)]
stored = seal(stage, 1, ids.new_id())
read = stored_rows(stage, stored, settings=SMALL, groups=groups).rows
numbers = pa.RecordBatch.from_arrays([column(np.array([0]))], ["number"])
print([n for found in read(iter([numbers])) for n in found.column(0).to_pylist()])
print("pandas" in sys.modules)
"""


def test_map_and_read_tasks_leave_pandas_alone(tmp_path: Path) -> None:
    """A new worker would take longer to import it than for the task."""
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", MAP_AND_READ, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["None", "[6, 8, 5, 7]", "False"]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "float64"])
@pytest.mark.parametrize("length", [0, 1, 1000])
def test_numbers_become_the_array_that_pyarrow_makes(dtype: str, length: int) -> None:
    numbers = (np.arange(length) % 100).astype(dtype)
    array = arrow_of(numbers)
    array.validate(full=True)
    assert array.equals(pa.array(numbers))


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint16(), pa.int64()])
@pytest.mark.parametrize(("start", "length"), [(0, 9), (3, 4), (9, 0), (0, 0)])
def test_a_slice_is_read_from_where_it_starts(kind: pa.DataType, start: int, length: int) -> None:
    array = pa.array(range(9), kind).slice(start, length)
    found = numbers_of(array)
    assert found.dtype == array.to_numpy().dtype
    assert found.tolist() == array.to_pylist()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((value, pa.int64()) for value in (0, -1, 2**62, None)),
        *((value, pa.float64()) for value in (0.0, -1.5, None)),
        *((value, pa.bool_()) for value in (True, False, None)),
        *((value, pa.string()) for value in ("", "é\0x", None)),
        *((value, pa.binary()) for value in (b"", b"\xff\0", None)),
    ],
)
def test_one_value_is_what_pyarrow_makes_of_it(value: object, kind: pa.DataType) -> None:
    array = array_of_one(value, kind)
    array.validate(full=True)
    assert array.equals(pa.array([value], kind))
