"""An archive of the classes that a driver loads, for the drivers that come after it.

Java writes it when a JVM exits that was told to (`-XX:ArchiveClassesAtExit`), so a JVM that was
killed leaves none. Later JVMs take their classes from it, already checked, instead of from jars. A
JVM of another version, or with other jars, says so and takes the jars.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Java options for the JVM that `spark-submit`, or PySpark in a Python program, starts here."""
_SECONDS, _PAUSE = 120.0, 0.125
"""How long a JVM may write behind the end of its Python program; some 2 s if it has a core."""


@dataclass(frozen=True)
class ClassArchive:
    """Where one archive is, or will be."""

    file: Path

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return `given`, and what makes a driver use the archive, or write it if there is none.

        Raises:
            InvalidInputError: the archive cannot be there.
        """
        if not self.file.absolute().parent.is_dir() or '"' in str(self.file):
            raise InvalidInputError(
                f"--class-archive must name a file in a folder that exists: {str(self.file)!r}"
            )
        name, level = "SharedArchiveFile", "warning"
        if not self.is_complete():  # whoever writes one warns of each class that it leaves out
            name, level = "ArchiveClassesAtExit", "error"
        options = f'-Xlog:disable -Xlog:all={level}:stderr "-XX:{name}={self.file.absolute()}"'
        return {**given, SUBMIT_OPTIONS: f"{options} {given.get(SUBMIT_OPTIONS, '')}".strip()}

    def is_complete(self) -> bool:
        """Whether a JVM wrote it to its end: the head, which is not 0, is written last."""
        try:
            with self.file.open("rb") as file:
                return any(file.read(4))
        except OSError:
            return False

    def wait(self, clock: Clock, *, submitted: bool = False) -> bool:
        """Wait for the JVM of a program that has ended; return whether it wrote the archive.

        Args:
            submitted: the program was spark-submit, whose JVM has ended with it.
        """
        until = clock.monotonic() + (0.0 if submitted else _SECONDS)
        while not (complete := self.is_complete()) and clock.monotonic() < until:
            clock.sleep(_PAUSE)
        return complete
