"""How code calls a name: what is known of the arguments without running the code.

Strategy: from the instruction that puts the callable on the stack, follow the depth of the stack to
the call that takes it. What cannot be followed is "not called": whoever asks must expect the worst.
"""

import dis
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

IN_MEMORY = frozenset({"BytesIO", "StringIO", "BufferReader", "py_buffer"})
"""Names in `io` and `pyarrow` of what makes a file or a buffer of values that the code has."""
MOMENTS = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Texts that libraries read as a time that the clock tells."""
_NO_WAY_ON = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_SUBSCRIPTS = ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR")
Steps = Sequence[dis.Instruction]


@dataclass(frozen=True, slots=True)
class Way:
    """One place where code uses a name."""

    called: bool = False
    """False also if the call was not found."""
    positional: int = 0
    keywords: frozenset[str] = frozenset()
    """Names of the arguments that are given by name, less those given as None."""
    nothing: bool = False
    """The first positional argument is None."""
    memory: bool = False
    """An argument is a file or a buffer in memory."""
    moment: bool = False
    """An argument is a text that means a time of the clock."""


UNCALLED = Way()


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that was found."""

    at: int
    """Position of its instruction."""
    end: int
    """Position after its last argument."""
    starts: list[int]
    """Position of the instruction that begins each argument."""
    names: list[str]
    """Of the arguments that are given by name; they are the last ones."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Names in one code object that stand for files in memory."""

    makers: frozenset[str]
    """What makes them."""
    variables: frozenset[str] = frozenset()
    """Local variables that only ever hold one."""


def way_of(steps: Steps, position: int, memory: Memory) -> Way:
    """Return how the callable is used that the instruction at `position` leaves on the stack."""
    call = _call_of(steps, position)
    if call is None:
        return UNCALLED
    positional = len(call.starts) - len(call.names)
    ends = [*call.starts, call.end][1:]
    return Way(
        called=True,
        positional=positional,
        keywords=frozenset(
            name
            for name, start in zip(call.names, call.starts[positional:], strict=True)
            if not _is_none(steps[start])
        ),
        nothing=positional > 0 and _is_none(steps[call.starts[0]]),
        memory=any(
            _is_memory(steps, start, end, memory)
            for start, end in zip(call.starts, ends, strict=True)
        ),
        moment=any(is_moment(steps, number) for number in range(position + 1, call.end)),
    )


def _call_of(steps: Steps, position: int) -> _Call | None:
    """Return the call of the callable that the instruction at `position` leaves on the stack."""
    depth = 0
    starts: list[int] = []
    targets: dict[int, int] = {}
    names: list[str] = []
    for number in range(position + 1, len(steps)):
        step = steps[number]
        if step.opname == "PUSH_NULL" and number == position + 1:
            continue  # since Python 3.13 it follows the callable
        depth = targets.get(step.offset, depth)
        if step.opname == "KW_NAMES" and isinstance(step.argval, tuple):
            names = [str(name) for name in step.argval]
        elif step.opname in ("PRECALL", "CALL", "CALL_KW"):
            by_name = step.opname == "CALL_KW"
            if by_name:
                names = [str(name) for name in steps[number - 1].argval]
            checked = step.opname == "CALL" and steps[number - 1].opname == "PRECALL"
            if depth == (step.arg or 0) + by_name and not checked:
                end = number - 1 if by_name or steps[number - 1].opname == "KW_NAMES" else number
                at = number + (step.opname == "PRECALL")
                found = _Call(at, end, starts[: step.arg or 0], names)
                return found if len(found.starts) == step.arg else None
            names = names if step.opname == "PRECALL" else []
        elif step.opname in _NO_WAY_ON:
            return None
        effect = _effect(step, jump=False)
        if effect is None:
            return None
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            there = _effect(step, jump=True)
            if isinstance(step.argval, int) and there is not None:
                targets.setdefault(step.argval, depth + there)
        depth += effect
        if depth < 0:
            return None
        starts += [number] * (depth - len(starts))
        del starts[depth:]
    return None


def memory_of(steps: Steps, makers: frozenset[str]) -> Memory:
    """Return the names that stand for files in memory.

    Args:
        makers: global names of what makes them.
    """
    aliases = {
        str(after.argval)
        for step, after in itertools.pairwise(steps)
        if step.opname == "IMPORT_FROM" and step.argval in IN_MEMORY
    }
    memory = Memory(makers | aliases | IN_MEMORY)
    stored: dict[str, set[bool]] = {}
    begun = 0
    for number, step in enumerate(steps):
        if step.opname in ("STORE_FAST", "STORE_DEREF", "STORE_NAME"):
            made = _is_memory(steps, begun, number, memory)
            stored.setdefault(str(step.argval), set()).add(made)
        if step.opname.startswith(("STORE_", "POP_TOP")):
            begun = number + 1
    only = frozenset(name for name, made in stored.items() if made == {True})
    return Memory(memory.makers, only)


def _is_memory(steps: Steps, start: int, end: int, memory: Memory) -> bool:
    """Return whether these instructions end with the call of what makes a file in memory."""
    if end == start + 1:
        step = steps[start]
        return step.opname.startswith("LOAD_") and step.argval in memory.variables
    for number in range(start, end):
        step = steps[number]
        if step.opname.startswith("LOAD_") and step.argval in memory.makers:
            call = _call_of(steps, number)
            return call is not None and call.at == end - 1
    return False


def moment_variables(steps: Steps) -> Iterator[str]:
    """Yield the texts of `MOMENTS` that are put into a variable."""
    for number, step in enumerate(steps[1:], 1):
        if step.opname.startswith("STORE_") and is_moment(steps, number - 1):
            yield str(steps[number - 1].argval)


def compared_moments(steps: Steps) -> Iterator[str]:
    """Yield the texts of `MOMENTS` that something is ordered against, as pandas orders times."""
    for number, step in enumerate(steps[1:], 1):
        orders = step.opname == "COMPARE_OP" and str(step.argval)[0] in "<>"
        if orders and is_moment(steps, number - 1):
            yield str(steps[number - 1].argval)


def is_moment(steps: Steps, number: int) -> bool:
    """Return whether the instruction loads a text of `MOMENTS` that is no key."""
    step = steps[number]
    if step.opname not in ("LOAD_CONST", "RETURN_CONST"):
        return False
    values = step.argval if isinstance(step.argval, tuple | frozenset) else (step.argval,)
    if not any(isinstance(one, str) and one.strip().lower() in MOMENTS for one in values):
        return False
    after = steps[number + 1] if number + 1 < len(steps) else step
    return after.opname not in _SUBSCRIPTS and after.argrepr != "[]"


def _is_none(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_CONST" and step.argval is None


def _effect(step: dis.Instruction, *, jump: bool) -> int | None:
    argument = step.arg if step.opcode >= dis.HAVE_ARGUMENT else None
    try:
        return dis.stack_effect(step.opcode, argument, jump=jump)
    except ValueError:
        return None
