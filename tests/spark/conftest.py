"""The one Spark session of a test run, and the fixtures that tests of stages share."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from identity_plans import write_table
from local_spark import local_spark
from py4j.java_gateway import GatewayClient
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.bench.cluster.faults import end_session
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.storage import open as open_storage
from durable_shuffle.shuffle.testing.faulty_storage import install

FAULTS_VARIABLE = "DURABLE_SHUFFLE_STORAGE_FAULTS"
"""Share of all storage calls that fail in these tests, for example 0.2. Default: none."""
FAULT_RATE = 0.2
PROGRAMS = Path(__file__).parent / "programs"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked `also_with_storage_faults` a second time, on a storage that fails."""
    marked = metafunc.definition.get_closest_marker("also_with_storage_faults")
    if marked and FAULTS_VARIABLE not in os.environ:
        metafunc.parametrize(
            "storage_faults", [0.0, FAULT_RATE], indirect=True, ids=["sound", "faulty"]
        )


@pytest.fixture(autouse=True)
def storage_faults(
    request: pytest.FixtureRequest, seed: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[float]:
    """The share of storage calls that fail; half of these fail after they took effect.

    Storages are opened by URL as everywhere else. They take their faults along to executors, and
    `Programs` gives driver programs theirs.
    """
    rate = float(getattr(request, "param", os.environ.get(FAULTS_VARIABLE, 0)))
    if not rate:
        yield rate
        return
    monkeypatch.setattr(open_storage, "open_backend", open_storage.open_backend)  # undone later
    opened = install(rate, seed)
    yield rate
    calls, fired = sum(len(s.calls) for s in opened), sum(s.fired for s in opened)
    print(f"storage faults: {fired} of {calls} calls of this process, seed={seed}")
    assert fired or calls < 60, "no fault fired"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores; tests must restore its configuration."""
    session = local_spark()
    yield session
    session.stop()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A separate session on the same context, so that settings of a test stay with that test."""
    return spark.newSession()


@pytest.fixture
def compiled_plans(session: SparkSession) -> None:
    """Compile plans, as Spark does by default."""
    session.conf.set("spark.sql.codegen.wholeStage", "true")
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A small Parquet table."""
    return spark.read.parquet(write_table(tmp_path / "t"))


@pytest.fixture
def big_and_dim(session: SparkSession, tmp_path: Path) -> SparkSession:
    """A session with the views big (20,000 rows) and dim (2,000 rows), and 8 shuffle partitions."""
    session.conf.set("spark.sql.shuffle.partitions", "8")
    big = session.range(0, 20_000, 1, 4).selectExpr("id as v", "id % 2000 as k", "id % 7 as g")
    dim = session.range(0, 2_000, 1, 2).selectExpr("id as k", "id % 50 as c", "id % 3 as d")
    for name, frame in (("big", big), ("dim", dim)):
        frame.write.parquet(str(tmp_path / name))
        session.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    return session


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An empty folder for stored stages."""
    return str(tmp_path / "root")


BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def instrument(function: BatchFunction, what: str) -> BatchFunction:
    """The function under a separate name: it reads files and the clock, but its rows do not
    depend on them."""

    class Instrument:
        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return function(batches)

        def durable_identity(self) -> str:
            return what

    return Instrument()


@pytest.fixture
def jvm_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[list[str]]]:
    """Return a context manager that yields the calls into the JVM in its block, one by one."""

    @contextmanager
    def counted() -> Iterator[list[str]]:
        calls: list[str] = []
        send = GatewayClient.send_command

        def noted(self: GatewayClient, command: str, *more: Any, **named: Any) -> Any:
            if not command.startswith("m\nd"):  # a reference is dropped
                calls.append(command)
            return send(self, command, *more, **named)

        with monkeypatch.context() as patch:
            patch.setattr(GatewayClient, "send_command", noted)
            yield calls

    return counted


class RunCounter:
    """A map function that records which partitions ran, independently of any report.

    Each run adds a line to the file of its partition. Appending a line is atomic, so concurrent
    runs are all counted.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    @property
    def function(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Return the function for `mapInArrow`; it does not change rows."""
        folder = str(self._folder)

        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pathlib import Path

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            with Path(folder, str(context.partitionId())).open("a") as file:
                file.write("run\n")
            yield from batches

        return instrument(count, f"counts in {folder}")

    def runs(self) -> dict[int, int]:
        """Return the number of runs of each partition."""
        return {int(p.name): len(p.read_text().splitlines()) for p in self._folder.iterdir()}


@pytest.fixture
def counter(tmp_path: Path) -> RunCounter:
    """Count producer runs in files."""
    return RunCounter(tmp_path / "runs")


class Breaker:
    """A map function that fails in one partition until it is repaired.

    It first waits until a number of other producers have committed, which it sees from file names.
    So when Spark gives up, no producer is left that could commit later.
    """

    def __init__(self, folder: Path, root: str) -> None:
        folder.mkdir()
        self._mended = folder / "mended"
        self._root = root

    def function(
        self, partition: int, *, after: int
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Return the function for `mapInArrow`; it does not change rows.

        Args:
            after: how many producers commit before the failure.
        """
        mended, root, slots = str(self._mended), self._root, f"*/*/producers/p*/{0:010d}"

        def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import time
            from pathlib import Path

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            if context.partitionId() == partition and not Path(mended).exists():
                deadline = time.monotonic() + 120
                while len(list(Path(root).glob(slots))) < after and time.monotonic() < deadline:
                    time.sleep(0.02)
                raise RuntimeError("broken on purpose")
            yield from batches

        return instrument(fail, f"fails in partition {partition} before {mended}")

    def mend(self) -> None:
        """Let nothing fail from now on."""
        self._mended.touch()


@pytest.fixture
def breaker(tmp_path: Path, root: str) -> Breaker:
    """Fail one producer until told otherwise."""
    return Breaker(tmp_path / "breaker", root)


def committed_producers(root: str | Path, job: str = "tests") -> set[int]:
    """Return the producers that have a record in their log, from file names alone."""
    slots = Path(root).glob(f"{job}/*/producers/p*/{0:010d}")
    return {int(slot.parent.name.removeprefix("p")) for slot in slots}


@pytest.fixture(name="committed_producers")
def committed_producers_fixture() -> Callable[..., set[int]]:
    """Give tests `committed_producers`, which they cannot import."""
    return committed_producers


_WITH_FAULTS = """
import runpy, sys
from pathlib import Path
from durable_shuffle.shuffle.testing.faulty_storage import install
install(float(sys.argv[1]), int(sys.argv[2]))
del sys.argv[:3]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Programs:
    """Driver programs in separate processes, each the leader of a process session."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self.fault_rate = 0.0
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, program: str, *arguments: object, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start `programs/<program>.py`. It uses stdin and stdout; its stderr is a file."""
        number = len(self._started)
        faults = [] if not self.fault_rate else ["-c", _WITH_FAULTS, self.fault_rate, self._seed]
        command = [sys.executable, *faults, PROGRAMS / f"{program}.py", *arguments]
        with (self._folder / f"stderr-{number}-{program}").open("w") as stderr:
            process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                cwd=self._folder,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": str(PROGRAMS.parents[2] / "src"),
                    **(env or {}),
                },
            )
        self._started.append(process)
        return process

    def answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Return the program's next line, a JSON object; skip Spark's own output.

        If a program hangs, the test's time limit ends the test, and then `end` kills the program.
        """
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        number = self._started.index(process)
        (path,) = self._folder.glob(f"stderr-{number}-*")
        raise AssertionError(f"the program ended without an answer:\n{path.read_text()[-6000:]}")

    def tell(self, process: subprocess.Popen[str], line: str) -> None:
        """Send the program one line."""
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def run(
        self, program: str, *arguments: object, env: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Run a program that has one answer, until it ends."""
        process = self.start(program, *arguments, env=env)
        answer = self.answer(process)
        process.communicate()
        assert process.returncode == 0
        return answer

    def kill(self, process: subprocess.Popen[str]) -> None:
        """SIGKILL the program, its JVM and its workers, and wait until they are gone."""
        end_session(process.pid, SystemClock(), patience_seconds=0)
        process.wait()

    def end(self) -> None:
        """Kill all programs that still run."""
        for process in self._started:
            self.kill(process)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Programs]:
    """Run driver programs; kill those that still run at the end of the file."""
    runner = Programs(tmp_path_factory.mktemp("programs"), seed)
    runner.fault_rate = float(os.environ.get(FAULTS_VARIABLE, 0))
    try:
        yield runner
    finally:
        runner.end()
