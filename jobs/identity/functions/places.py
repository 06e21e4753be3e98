"""Places in the source: where code stands, and which code can show it.

Files and lines do not count in an identity, so that a function may move in its script. They do if a
function can see them: in a traceback, a frame, a code object, a log record or a warning. Then its
rows may hold them.
"""

import re
import sys
from collections.abc import Iterable
from types import CodeType

from durable_shuffle.jobs.identity.digests import raw_digest

_ATTRIBUTES = """
    __code__ __traceback__ __firstlineno__ ag_code ag_frame co_filename co_firstlineno co_lines
    co_linetable co_lnotab co_positions cr_code cr_frame cr_origin exc_traceback f_back f_code
    f_lineno get_stack gi_code gi_frame lineno pathname print_stack tb_frame tb_lineno tb_next
    """
_SHOWN = re.compile(
    r"traceback\..*|inspect\.getmembers\w*|warnings\.(formatwarning|showwarning)|dill\..*"
    r"|(\w+\.)*cloudpickle\.(dumps?|(Cloud)?Pickler)(\..*)?"
    r"|logging\.(\w*Handler|Formatter|LogRecord|basicConfig|handlers|config|makeLogRecord"
    r"|setLogRecordFactory|getLogRecordFactory)(\..*)?"
)
"""Names by which code gets a text with places."""
_RECORDED = re.compile(r"warnings\.catch_warnings(\..*)?")


def shows_places(names: Iterable[str], attributes: Iterable[str], texts: Iterable[str]) -> bool:
    """Return whether code may see where it stands.

    Args:
        names: dotted names in libraries that it uses.
        attributes: attributes that it reads of any object.
        texts: words in its constants, which may name attributes, fields or arguments.
    """
    words = {*attributes, *texts}
    if not words.isdisjoint(_ATTRIBUTES.split()):
        return True
    named = list(names)
    if "record" in words and any(map(_RECORDED.fullmatch, named)):
        return True
    return any(map(_SHOWN.fullmatch, named))


def words_of(constants: Iterable[object]) -> set[str]:
    """Return the words in the texts among a code's constants."""
    found: set[str] = set()
    for constant in constants:
        if isinstance(constant, str):
            found.update(re.findall(r"\w+", constant))
        elif isinstance(constant, tuple | frozenset):
            found |= words_of(constant)
    return found


def place_of(code: CodeType) -> bytes:
    """Return a digest of the file and the lines of code and of what is nested in it."""
    nested = [place_of(part) for part in code.co_consts if isinstance(part, CodeType)]
    return raw_digest([code.co_filename, str(code.co_firstlineno), code.co_linetable, *nested])


def place_of_class(cls: type) -> bytes:
    """Return a digest of the line at which a class begins, where Python keeps it."""
    line = vars(cls).get("__firstlineno__") if sys.version_info >= (3, 13) else None
    return raw_digest(["class", str(line)])
