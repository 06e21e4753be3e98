"""The names that a code object uses.

They are read from the instructions, because `co_names` does not distinguish globals from
attributes.
"""

import dis
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType

from durable_shuffle.jobs.identity.functions.calls import (
    UNCALLED,
    Memory,
    Way,
    compared_moments,
    memory_of,
    moment_variables,
    way_of,
)
from durable_shuffle.jobs.identity.functions.places import words_of

_PADDING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_LOCAL = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
"""Besides every instruction with LOAD_FAST in its name; newer Pythons have combined ones."""
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
Paths = dict[str, set[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class ImportUse:
    """An import statement in code: `level` dots, the module, the imported names."""

    level: int
    module: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """The local name `to` that an import statement binds: to a module, or to `name` in it."""

    to: str
    level: int
    module: str
    name: str | None


@dataclass(frozen=True, slots=True)
class CodeUse:
    """The names that a code object uses, including the code nested in it."""

    globals: Paths = field(default_factory=dict)
    """Global name -> attribute paths read directly from it, e.g. np -> {("linalg", "norm")}."""
    imports: list[ImportUse] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    """The names that imports bind."""
    locals: Paths = field(default_factory=dict)
    """Like `globals`, for local and closure variables."""
    ways: dict[tuple[str, ...], set[Way]] = field(default_factory=dict)
    """Name with its path -> how it is called."""
    methods: dict[str, set[Way]] = field(default_factory=dict)
    """Attribute that is called as a method of any object -> how."""
    attributes: set[str] = field(default_factory=set)
    """Names of all attributes that are read from any object."""
    moments: set[str] = field(default_factory=set)
    """Texts such as "now" that are put into a variable."""
    compared: set[str] = field(default_factory=set)
    """Such texts that something is ordered against."""
    words: set[str] = field(default_factory=set)
    """Words in the texts among its constants."""


@lru_cache(maxsize=4096)
def code_use(code: CodeType, memory: frozenset[str] = frozenset()) -> CodeUse:
    """Return the names that the code uses, including the code nested in it; do not change them.

    Args:
        memory: global names of what makes files in memory.
    """
    use = CodeUse()
    for nested in _with_nested(code):
        _collect(nested, use, memory)
    return use


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _with_nested(value)


def _collect(code: CodeType, use: CodeUse, makers: frozenset[str]) -> None:
    steps = [
        step._replace(argval=code.co_consts[step.arg or 0]) if step.opname == "KW_NAMES" else step
        for step in dis.get_instructions(code)
        if step.opname not in _PADDING
    ]
    use.words.update(words_of(code.co_consts))
    memory = memory_of(steps, makers)
    use.moments.update(moment_variables(steps))
    use.compared.update(compared_moments(steps))
    for position, step in enumerate(steps):
        if step.opname in _GLOBAL:
            _collect_path(steps, position, str(step.argval), use, use.globals, memory)
        elif step.opname in _LOCAL or "LOAD_FAST" in step.opname:
            name = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
            _collect_path(steps, position, str(name), use, use.locals, memory)
        elif step.opname == "IMPORT_NAME":
            _collect_import(steps, position, use)
        elif step.opname in _ATTRIBUTE:
            use.attributes.add(str(step.argval))
            if _is_method(step):
                how = use.methods.setdefault(str(step.argval), set())
                how.add(way_of(steps, position, memory))


def _collect_path(
    steps: list[dis.Instruction],
    position: int,
    name: str,
    use: CodeUse,
    into: Paths,
    memory: Memory,
) -> None:
    path: list[str] = []
    last = position
    for last in range(position, len(steps)):
        if last + 1 == len(steps) or steps[last + 1].opname not in _ATTRIBUTE:
            break
        path.append(str(steps[last + 1].argval))
    way = way_of(steps, last, memory)
    constant = _attribute_by_constant(steps, position, last + 1)
    if constant is not None:
        path, way = [*path, constant], UNCALLED
    use.ways.setdefault((name, *path), set()).add(way)
    into.setdefault(name, set()).add(tuple(path))


def _attribute_by_constant(steps: list[dis.Instruction], position: int, after: int) -> str | None:
    """Return the name in `getattr(x, "name")`, if that is what uses the value.

    Args:
        position: of the instruction that begins the value; `after` is behind it.
    """
    if position == 0 or after >= len(steps):
        return None
    before = [step for step in steps[max(0, position - 2) : position] if step.opname != "PUSH_NULL"]
    name = steps[after]
    if not before or before[-1].argval != "getattr" or name.opname != "LOAD_CONST":
        return None
    return name.argval if isinstance(name.argval, str) else None


def _is_method(step: dis.Instruction) -> bool:
    if step.opname == "LOAD_METHOD":
        return True
    return sys.version_info >= (3, 12) and step.opname == "LOAD_ATTR" and bool((step.arg or 0) & 1)


def _collect_import(steps: list[dis.Instruction], position: int, use: CodeUse) -> None:
    # the two instructions before it push the level and the names of `from … import names`
    pushed = steps[position - 2].argval if position >= 2 else 0
    level = pushed if isinstance(pushed, int) else 0
    names = steps[position - 1].argval if position >= 1 else None
    module = str(steps[position].argval)
    taken = tuple(map(str, names)) if isinstance(names, tuple) else ()
    use.imports.append(ImportUse(level, module, taken))
    name: str | None = None
    renamed = False
    for step in steps[position + 1 :]:
        if step.opname == "IMPORT_FROM":
            name, renamed = str(step.argval), True
        elif step.opname.startswith("STORE_"):
            to = str(step.argval[0] if isinstance(step.argval, tuple) else step.argval)
            if taken:
                use.bindings.append(Binding(to, level, module, name))
                continue
            # `import a.b` binds a, `import a.b as c` binds a.b
            whole = module if renamed else module.partition(".")[0]
            use.bindings.append(Binding(to, level, whole, None))
            return
        elif step.opname == "SWAP" or (step.opname == "POP_TOP" and not taken):
            continue
        else:
            return
