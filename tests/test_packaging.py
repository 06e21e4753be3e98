"""What an installation puts on a user's path, and what importing it costs."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import durable_shuffle

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
FOLDERS = ("serialization", "shuffle", "recovery", "jobs", "bench")
PUBLIC = ("aio", "errors", "pipelines", "results", "streaming", "views")
FACADE = {f"{name}.py" for name in ("__init__", "_names", *PUBLIC)}
LEFT_OUT = ROOT / "bench" / "suite"
"""Benchmarks that pytest runs from a checkout."""


def python(code: str) -> str:
    """Run code in a fresh interpreter that sees the checkout; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=SOURCE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_of_the_checkout_lead_to_the_real_folders(folder: str) -> None:
    """The import package reads the folders at the top, not copies of them."""
    link = SOURCE / "durable_shuffle" / folder
    assert link.is_symlink(), f"{link} must be a link: clone with core.symlinks=true"
    assert link.resolve() == ROOT / folder
    assert not link.readlink().is_absolute(), "a moved checkout must keep working"


def test_links_are_all_there_is() -> None:
    """The facade's folder holds the facade, the typing marker and the links."""
    found = {p.name for p in (SOURCE / "durable_shuffle").iterdir()} - {"__pycache__"}
    assert found == {*FACADE, "py.typed", *FOLDERS}


def test_facade_imports_neither_spark_nor_storage_drivers() -> None:
    """Importing the package is cheap: Spark and fsspec come with their first use."""
    heavy = "[m for m in ('pyspark', 'py4j', 'fsspec', 'pandas', 'typer') if m in sys.modules]"
    assert python(f"import durable_shuffle, sys; print({heavy})") == "[]"
    spark = "[m for m in ('pyspark', 'py4j') if m in sys.modules]"
    public = ", ".join(f"durable_shuffle.{name}" for name in PUBLIC)
    assert python(f"import {public}, sys; print({spark})") == "[]"


def test_core_layers_work_without_spark() -> None:
    """Nothing below `jobs` imports pyspark, whatever of it is imported."""
    code = """
import importlib, pkgutil, sys
sys.modules["pyspark"] = None  # any import of it now fails
import durable_shuffle
import durable_shuffle.aio, durable_shuffle.pipelines
import durable_shuffle.results, durable_shuffle.views
for layer in ("serialization", "shuffle", "recovery"):
    package = importlib.import_module(f"durable_shuffle.{layer}")
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if ".testing" not in info.name:
            importlib.import_module(info.name)
print("fine")
"""
    assert python(code) == "fine"


def test_without_pyspark_the_error_says_what_to_install() -> None:
    """The names that need PySpark name the extra that brings it."""
    code = """
import sys
sys.modules["pyspark"] = None  # any import of it now fails
import durable_shuffle, durable_shuffle.pipelines, durable_shuffle.streaming
for module, name in ((durable_shuffle, "DurableShuffle"),
                     (durable_shuffle.streaming, "register"),
                     (durable_shuffle.pipelines, "spark_tasks")):
    try:
        getattr(module, name)
    except ModuleNotFoundError as error:
        print(error)
"""
    names = ("DurableShuffle", "register", "spark_tasks")
    expected = [f"{n} needs PySpark: pip install 'durable-shuffle[spark]'" for n in names]
    assert python(code).splitlines() == expected


def test_logs_are_silent_until_a_program_asks_for_them() -> None:
    """One logger has all of it; without a handler not even a warning reaches standard error."""
    code = """
import logging, sys
sys.stderr = sys.stdout
import durable_shuffle
inner = logging.getLogger("durable_shuffle.jobs.session")
inner.warning("unheard")
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(message)s")
inner.info("heard")
"""
    assert python(code) == "durable_shuffle.jobs.session heard"


@pytest.mark.parametrize(
    "module",
    [
        "serialization.frames",
        "serialization.control",
        "shuffle.log.stage",
        "shuffle.storage.open",
        "shuffle.read.sealed_reader",
        "recovery.resume",
        "jobs.session",
        "jobs.engine.tasks",
        "jobs.cli",
    ],
)
def test_every_layer_can_be_imported_first(module: str) -> None:
    """No import order is needed: there is no cycle that only the facade would hide."""
    python(f"import durable_shuffle.{module}")


def test_importing_starts_no_thread() -> None:
    """Spark forks its Python workers: a thread that an import left behind would break them."""
    code = """
import threading
import durable_shuffle.shuffle.log.stage, durable_shuffle.shuffle.storage.open
import durable_shuffle.shuffle.write.producer, durable_shuffle.shuffle.read.sealed_reader
print([t.name for t in threading.enumerate()])
"""
    assert python(code) == "['MainThread']"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout with the installed build backend."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run(
        [*command, "--outdir", str(folder), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extras", ["spark,cli,fast", "spark,s3", "spark,gcs,azure,hdfs"])
def test_what_is_installed_runs_the_program_of_the_readme(
    wheel: Path, tmp_path: Path, extras: str
) -> None:
    """In an environment of its own, with nothing of the checkout."""
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", f"{wheel}[{extras}]"]
    subprocess.run(pip, check=True)
    text = (ROOT / "README.md").read_text()
    (tmp_path / "program.py").write_text(text.split("```python\n")[1].split("```")[0])
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK"))}
    environment["PATH"] = f"{home / 'bin'}{os.pathsep}{environment['PATH']}"
    for decision in ("computed", "reused"):
        done = subprocess.run(
            [str(home / "bin" / "python"), "program.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("1000\n")
        assert decision in done.stdout


def test_wheel_gives_exactly_one_top_level_name(wheel: Path) -> None:
    """Generic names like `jobs` never reach site-packages, where they would collide."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"durable_shuffle"}


def test_wheel_holds_every_source_file_once(wheel: Path) -> None:
    """All five folders are packed as they are, with the typing marker, and no jar."""
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    packed = {name for name in names if name.endswith((".py", ".java"))}
    facade = {f"durable_shuffle/{name}" for name in FACADE}
    assert facade <= packed
    packed -= facade
    sources = {
        f"durable_shuffle/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for suffix in ("py", "java")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
        if not path.is_relative_to(LEFT_OUT)
    }
    assert packed == sources
    assert "durable_shuffle/py.typed" in names
    assert not [name for name in names if name.endswith((".jar", ".class"))]
    assert not [name for name in names if "tests" in name or "__pycache__" in name]


def test_wheel_loads_into_no_other_program(wheel: Path) -> None:
    """It announces its command and nothing else: no pytest of a user's gets a plug-in from it."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
    groups = re.findall(r"^\[(.*)\]", archive.read(name).decode(), re.MULTILINE)
    assert groups == ["console_scripts"]


def test_wheel_works_from_its_own_files(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, the package imports and says its version, without the checkout."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "import durable_shuffle, durable_shuffle.jobs.session as s;"
        "print(durable_shuffle.__version__, s.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    version, file = done.stdout.split()
    assert version == durable_shuffle.__version__
    assert Path(file).is_relative_to(tmp_path)


def test_version_is_said_once() -> None:
    """The package, its metadata and the project file agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == durable_shuffle.__version__
    assert importlib.metadata.version("durable-shuffle") == durable_shuffle.__version__


def test_extras_that_messages_name_exist() -> None:
    """Each `pip install 'durable-shuffle[extra]'` in an error message can be carried out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r"durable-shuffle\[([a-z0-9]+)\]", path.read_text()))
            named |= set(re.findall(r'extra="([a-z0-9]+)"', path.read_text()))
    assert named
    assert named <= set(project["optional-dependencies"])


def test_spark_extra_brings_what_arrow_functions_need() -> None:
    """PySpark does not install pandas and refuses mapInArrow without it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = " ".join(project["optional-dependencies"]["spark"])
    assert "pyspark" in wanted
    assert "pandas" in wanted
