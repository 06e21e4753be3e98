"""The archive of Java classes of `durable-shuffle run`: when it is used, and when written."""

from pathlib import Path

import pytest
from small_stage import ManualClock

from durable_shuffle.jobs.cli.class_archive import SUBMIT_OPTIONS, ClassArchive
from durable_shuffle.serialization.errors import InvalidInputError

HEAD = b"\xa8\xab\x0b\xf0"


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    """One that nobody has written."""
    return ClassArchive(tmp_path / "my classes.jsa")


def options(archive: ClassArchive, given: str = "") -> str:
    return archive.environment({SUBMIT_OPTIONS: given} if given else {})[SUBMIT_OPTIONS]


def test_what_is_missing_is_written_and_then_used(archive: ClassArchive) -> None:
    """Options that the user gave come last, so they win; all else in the environment stays."""
    assert f'"-XX:ArchiveClassesAtExit={archive.file}"' in options(archive)
    archive.file.write_bytes(HEAD + b"classes")
    assert f'"-XX:SharedArchiveFile={archive.file}"' in options(archive)
    assert options(archive, "-Xlog:gc").endswith('" -Xlog:gc')
    assert archive.environment({"HOME": "/h"})["HOME"] == "/h"


@pytest.mark.parametrize("left", [b"", bytes(4096), b"\0\0\0\0classes"])
def test_what_a_killed_jvm_left_is_written_again(archive: ClassArchive, left: bytes) -> None:
    """The head is written last, so it is empty."""
    archive.file.write_bytes(left)
    assert "ArchiveClassesAtExit" in options(archive)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    """Java would write nothing, and say nothing."""
    with pytest.raises(InvalidInputError, match="nowhere"):
        options(ClassArchive(tmp_path / "nowhere" / "classes.jsa"))


def test_it_waits_for_a_jvm_that_still_writes(archive: ClassArchive) -> None:
    """A JVM ends behind its Python program. One that never writes is not waited for for ever."""
    clock = ManualClock(0.0, [])
    assert not archive.wait(clock)
    assert sum(clock.pauses) == pytest.approx(120.0)
    clock = ManualClock(0.0, [])
    assert not archive.wait(clock, submitted=True)
    assert not clock.pauses
    archive.file.write_bytes(HEAD)
    clock = ManualClock(0.0, [])
    assert archive.wait(clock)
    assert not clock.pauses
