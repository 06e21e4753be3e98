"""The names that a code object uses.

They are read from the instructions, because `co_names` does not distinguish globals from
attributes.
"""

import dis
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType

_PADDING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL", "RESUME"})
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
    bare: set[tuple[str, ...]] = field(default_factory=set)
    """Names with their paths that are called without arguments or with None, or are not called."""
    methods: set[str] = field(default_factory=set)
    """Names of methods that are called on any object."""


def code_use(code: CodeType) -> CodeUse:
    """Return the names that the code uses, including the code nested in it."""
    use = CodeUse()
    for nested in _with_nested(code):
        _collect(nested, use)
    return use


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _with_nested(value)


def _collect(code: CodeType, use: CodeUse) -> None:
    steps = [step for step in dis.get_instructions(code) if step.opname not in _PADDING]
    for position, step in enumerate(steps):
        if step.opname in _GLOBAL:
            _collect_path(steps, position, str(step.argval), use, use.globals)
        elif step.opname in _LOCAL or "LOAD_FAST" in step.opname:
            name = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
            _collect_path(steps, position, str(name), use, use.locals)
        elif step.opname == "IMPORT_NAME":
            _collect_import(steps, position, use)
        elif _is_method(step):
            use.methods.add(str(step.argval))


def _collect_path(
    steps: list[dis.Instruction], position: int, name: str, use: CodeUse, into: Paths
) -> None:
    path: list[str] = []
    for following in steps[position + 1 :]:
        if following.opname not in _ATTRIBUTE:
            if not _is_argument(following):
                use.bare.add((name, *path))
            break
        path.append(str(following.argval))
    into.setdefault(name, set()).add(tuple(path))


def _is_argument(step: dis.Instruction) -> bool:
    if step.opname in ("LOAD_CONST", "RETURN_CONST"):
        return step.argval is not None
    return step.opname.startswith(("LOAD_", "BUILD_"))


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
