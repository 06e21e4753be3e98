"""Options of a read by which its rows depend on more than the listed files. No I/O.

An option may name another file, such as a schema, or let a read go on in spite of faults. Then the
rows cannot be recognised in another run.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

_FILE_OPTION = re.compile(r"(?i)\w*(?:path|url|file|location)")
_ROWS_THEMSELVES = frozenset({"path", "paths", "basepath"})
"""Options that say where the rows are. Their files are listed."""
FAULTS = ("ignoreMissingFiles", "ignoreCorruptFiles")
"""Options, and settings below `spark.sql.files`, under which a read may leave files out."""


def named_files(options: Collection[str]) -> list[str]:
    """Return what options read besides the rows, such as a schema in a file, for messages.

    The file may change, and no listing of the rows' files shows that.
    """
    names = sorted(n for n in options if _FILE_OPTION.fullmatch(n))
    others = [name for name in names if name.lower() not in _ROWS_THEMSELVES]
    return [f"the file that the option {name} names" for name in others]


def left_out(
    options: Mapping[str, str], settings: Sequence[Callable[[str], str | None]]
) -> list[str]:
    """Return the reasons why a read may leave out files after a fault, for messages.

    No listing tells which files it left out.

    Args:
        settings: each returns a setting of a session that may decide; None if it is not set.
    """
    given = {key.lower(): value for key, value in options.items()}
    found = []
    for name in FAULTS:
        setting = f"spark.sql.files.{name}"
        values = (given.get(name.lower()), *(get(setting) for get in settings))
        if any(value is not None and str(value).lower() != "false" for value in values):
            found.append(f"a read that may leave files out ({setting}, or its option)")
    return found
