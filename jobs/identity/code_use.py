"""What a code object is and what it reaches by name.

Bytecode, constants and names count; file name and line numbers do not, so that moving a function
does not change it. Names are read from the instructions, because `co_names` does not tell a global
from an attribute.
"""

import dis
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType

from durable_shuffle.jobs.identity.digests import raw_digest

_PADDING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL", "RESUME"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


@dataclass(frozen=True, slots=True)
class ImportUse:
    """An import statement inside a function body: `level` dots, the module, the names taken."""

    level: int
    module: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodeUse:
    """Names that a code object and the code nested in it use."""

    globals: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    """Global name -> attribute paths read directly from it, e.g. np -> {("linalg", "norm")}."""
    imports: list[ImportUse] = field(default_factory=list)


def code_digest(code: CodeType, constant: Callable[[object], bytes]) -> bytes:
    """Digest of the code and the code nested in it; `constant` digests any other constant."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    parts: list[bytes | str] = ["code", repr(counts), code.co_code]
    parts.append(getattr(code, "co_exceptiontable", b""))
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        parts.append(str(len(names)))
        parts.extend(names)
    parts.extend(
        code_digest(value, constant) if isinstance(value, CodeType) else constant(value)
        for value in code.co_consts
    )
    return raw_digest(parts)


def code_use(code: CodeType) -> CodeUse:
    """Globals and imports used by the code, the code nested in it included."""
    use = CodeUse()
    for one in _with_nested(code):
        _collect(one, use)
    return use


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _with_nested(value)


def _collect(code: CodeType, use: CodeUse) -> None:
    steps = [step for step in dis.get_instructions(code) if step.opname not in _PADDING]
    for at, step in enumerate(steps):
        if step.opname in _GLOBAL:
            path: list[str] = []
            for following in steps[at + 1 :]:
                if following.opname not in _ATTRIBUTE:
                    break
                path.append(str(following.argval))
            use.globals.setdefault(str(step.argval), set()).add(tuple(path))
        elif step.opname == "IMPORT_NAME":
            # the two instructions before it push the level and the names of `from … import names`
            level = steps[at - 2].argval if at >= 2 else 0
            names = steps[at - 1].argval if at >= 1 else None
            use.imports.append(
                ImportUse(
                    level if isinstance(level, int) else 0,
                    str(step.argval),
                    tuple(map(str, names)) if isinstance(names, tuple) else (),
                )
            )
