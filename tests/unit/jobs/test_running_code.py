"""Driver and executors must run the same code: told by version and digest."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import durable_shuffle
from durable_shuffle.jobs.deploy.running_code import (
    archive_name,
    code_in,
    code_of,
    package_sources,
    running_code,
)
from durable_shuffle.jobs.deploy.ship import make_archive
from durable_shuffle.jobs.engine.tasks import check_code
from durable_shuffle.serialization.errors import IncompatibleError


def test_one_changed_byte_is_other_code() -> None:
    """Equal versions do not hide that a development copy differs."""
    sources = package_sources()
    code = code_of(sources)
    assert code.startswith(f"{durable_shuffle.__version__}-")
    changed = {**sources, "durable_shuffle/jobs/engine/tasks.py": b"# changed"}
    assert code_of(changed) != code
    assert code_of({**sources, "durable_shuffle/jobs/added.py": b""}) != code


def test_executors_get_the_modules_that_users_import() -> None:
    """A function may import `durable_shuffle.errors` or `.aio` in the worker."""
    facade = Path(durable_shuffle.__file__).parent.glob("*.py")
    names = {f"durable_shuffle/{path.name}" for path in facade}
    assert {"durable_shuffle/errors.py", "durable_shuffle/aio.py"} <= names
    assert names <= set(package_sources())


def test_archive_names_its_code(tmp_path: Path) -> None:
    """What is imported from the archive knows its code without reading it."""
    path = make_archive(tmp_path, compiled=True)
    inside = f"{path}/durable_shuffle/__init__.py"
    assert code_in(inside) == code_in(str(path)) == running_code()
    assert path.name == archive_name(running_code())
    assert code_in("/site-packages/durable_shuffle/__init__.py") is None


def test_executors_get_what_they_need(tmp_path: Path) -> None:
    """No command, page, benchmark or kit for tests, unless this driver has imported one of the last
    two, whose functions it may hand to executors; that does not make it other code."""
    program = (
        "import sys, zipfile; from pathlib import Path; import durable_shuffle.jobs.session;"
        "[__import__(name) for name in sys.argv[2:]];"
        "from durable_shuffle.jobs.deploy.ship import make_archive;"
        "path = make_archive(Path(sys.argv[1]), compiled=True);"
        "print(path.name, *{n.rpartition('/')[0] for n in zipfile.ZipFile(path).namelist()})"
    )

    def shipped(*imported: str) -> tuple[str, set[str]]:
        folder = tmp_path / str(len(imported))
        folder.mkdir()
        command = [sys.executable, "-c", program, str(folder), *imported]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        name, *folders = done.stdout.split()
        return name, {f.removeprefix("durable_shuffle").strip("/") for f in folders}

    name, folders = shipped()
    assert {"serialization", "shuffle", "recovery", "jobs", "jobs/identity"} <= folders
    unwanted = {"jobs/cli", "jobs/inspect", "jobs/reports", "shuffle/testing", "bench"}
    assert not folders & unwanted
    kit, bench = "shuffle.testing.faulty_storage", "bench.workloads.spark_tasks"
    other, more = shipped(f"durable_shuffle.{kit}", f"durable_shuffle.{bench}")
    assert other == name == archive_name(running_code())
    assert more - folders >= {"shuffle/testing", "bench", "bench/workloads"}
    assert not [folder for folder in more if "suite" in folder]


@pytest.mark.parametrize("damage", [b"", b"another Python's"])
def test_workers_compile_nothing(tmp_path: Path, damage: bytes) -> None:
    """What the driver has loaded is imported from the archive as byte code of the same source; a
    Python that does not know that byte code takes the source."""
    path = make_archive(tmp_path, compiled=True)
    if damage:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, damage + data if name.endswith("pyc") else data)
    program = (
        "import builtins, sys; sys.path.insert(0, sys.argv[1]); made = [];"
        "real = builtins.compile;"
        "builtins.compile = lambda s, n, *a, **k: (made.append(str(n)), real(s, n, *a, **k))[1];"
        "import durable_shuffle.jobs.engine.tasks as tasks;"
        "ours = [n for n in made if sys.argv[1] in n];"
        "print(tasks.__file__, len(ours), tasks.running_code())"
    )
    command = [sys.executable, "-c", program, str(path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert out[0].startswith(str(path))
    assert (int(out[1]) > 0) == bool(damage)
    assert out[2] == running_code()


def test_other_code_is_refused() -> None:
    """The message shows both."""
    check_code(running_code())
    with pytest.raises(IncompatibleError, match=rf"{running_code()}.*driver 0\.0\.0-other"):
        check_code("0.0.0-other")
