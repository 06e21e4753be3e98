"""Identity of a plan on Spark Connect: the message that the client makes, and what the server says.

The message says what the user wrote: expressions, options, rows of the client, Python functions.
The server says what names and paths refer to (`connect_inputs.py`). What `connect_known.py` does
not list is unresolved by its name: then another run recognises the plan only if the user gives a
version. With and without one, two different plans never have the same fingerprint.

Ids that the client counts (plans, lambda variables) and names that it draws are numbered by first
appearance. Positions in the user's source code and credentials are left out.

Spark lists files each time that it plans, and a server shows a plan only as text. So the inputs are
asked before the rows are stored and again afterwards; if they differ, the stage is not recognised.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

from google.protobuf.message import Message  # type: ignore[import-untyped]
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame

from durable_shuffle.jobs.identity.connect.inputs import ConnectInputs, Inputs, PathSource
from durable_shuffle.jobs.identity.connect.known import (
    DRAWN,
    EXPRESSIONS,
    RELATIONS,
    SPARKS_OWN,
    called,
    function_pattern,
    moving_calls,
    not_sparks,
    numbered,
    shown_plan,
)
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.identity import identify_function
from durable_shuffle.jobs.identity.plan.catalyst_walk import VOUCH
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity
from durable_shuffle.jobs.identity.plan.read_options import left_out, named_files
from durable_shuffle.jobs.identity.plan.settings import session_settings_digest
from durable_shuffle.jobs.identity.plan.sources import without_credentials

_IGNORED = frozenset({"origin"})
"""The position in the user's program where a relation or an expression was made."""
_PICKLED = frozenset({"PythonUDF", "PythonUDTF", "PythonDataSource"})
_VARIABLE = "UnresolvedNamedLambdaVariable"
_NAMES = frozenset({"NamedTable", "SQL"})
_KNOWN = {"Relation": ("rel_type", RELATIONS), "Expression": ("expr_type", EXPRESSIONS)}


class ConnectPlan:
    """One walk over a plan's message.

    Args:
        stage_of_plan: id of a relation -> fingerprint of the stored stage that it reads, or None.
    """

    def __init__(self, stage_of_plan: Callable[[int], str | None]) -> None:
        self._stage_of_plan = stage_of_plan
        self.tokens: list[str] = []
        self.stages_below: list[str] = []
        self.by_name = False
        """True if the plan contains a table name or SQL text, which the server resolves."""
        self.functions: list[str] = []
        self.unresolved: list[str] = []
        self.opaque: list[str] = []
        self.sources: list[PathSource] = []
        self.texts: list[str] = []
        """SQL text."""
        self.called: set[str] = set()
        """Names of functions and operators."""
        self._numbers: dict[tuple[str, object], int] = {}
        self.aliases: set[str] = set()
        """Names that the client drew for frames; any other text is compared as it is."""

    def walk(self, message: Message) -> None:
        """Append the tokens of a whole plan. Call it once."""
        aliases = (m.alias for m in every_message(message) if m.DESCRIPTOR.name == "SubqueryAlias")
        self.aliases = {alias for alias in aliases if re.fullmatch(DRAWN, alias)}
        self.visit(message)

    def visit(self, message: Message) -> None:
        """Append the tokens of a message, field by field."""
        kind = message.DESCRIPTOR.name
        if kind == "Relation":
            stage = self._stage_of_plan(message.common.plan_id)
            if stage is not None:
                self.tokens.append(f"stage, list {len(self.stages_below)}")
                self.stages_below.append(stage)
                return
        self.by_name |= kind in _NAMES
        self._note(kind, message)
        self.tokens.append(f"{kind} (")
        for field, value in message.ListFields():
            if field.name in _IGNORED:
                continue
            self.tokens.append(field.name)
            if field.name == "plan_id":
                self._number("plan", value)
            elif kind == _VARIABLE and field.name == "name_parts":
                self._number("variable", tuple(value))
            elif kind in _PICKLED and field.name == "command":
                self._function(bytes(value))
            elif field.message_type is not None and field.message_type.GetOptions().map_entry:
                self._map(dict(value))
            elif _is_repeated(field):
                self.tokens.append(str(len(value)))
                for element in value:
                    self._value(element)
            else:
                self._value(value)
        self.tokens.append(")")

    def _note(self, kind: str, message: Any) -> None:
        """Note what the server has to be asked about, and what is not known."""
        if kind in _KNOWN:
            group, known = _KNOWN[kind]
            chosen = message.WhichOneof(group)
            if chosen not in known:
                self._give_up(f"{chosen or 'an operator'} of Spark Connect")
        elif kind == "DataSource":
            name, schema = message.format.lower(), message.schema
            paths, options = tuple(message.paths), dict(message.options)
            self.sources.append(PathSource(name, schema, options, paths))
        elif kind == "SQL":
            self.texts.append(message.query)
        elif kind == "ExpressionString":
            self.texts.append(message.expression)
        elif kind in ("UnresolvedFunction", "CallFunction"):
            self.called.add(message.function_name.lower())
        elif kind in ("JavaUDF", "ScalarScalaUDF"):
            self._give_up("a function of a jar")

    def _value(self, value: Any) -> None:
        if isinstance(value, Message):
            self.visit(value)
        elif isinstance(value, bytes):
            self.tokens.append(hex_digest([value]))
        elif isinstance(value, str):
            self.tokens.append(repr(re.sub(DRAWN, self._drawn, value)))
        else:
            self.tokens.append(repr(value))

    def _drawn(self, name: re.Match[str]) -> str:
        if name[0] not in self.aliases:
            return name[0]
        return f"drawn {self._numbers.setdefault(('drawn', name[0]), len(self._numbers))}"

    def _map(self, values: dict[Any, Any]) -> None:
        """Append the entries of a map, sorted; options of a source without their credentials."""
        if all(isinstance(value, str) for value in values.values()):
            self.tokens.append(repr(without_credentials(values)))
            return
        for key in sorted(values):
            self.tokens.append(repr(key))
            self._value(values[key])

    def _number(self, space: str, number: object) -> None:
        self.tokens.append(str(self._numbers.setdefault((space, number), len(self._numbers))))

    def _function(self, command: bytes) -> None:
        """Identify a pickled function by its code, since its bytes differ from run to run."""
        self.tokens.append(f"list {len(self.functions)}")
        try:
            loaded = cast("Any", CloudPickleSerializer)().loads(command)
            identity = identify_function(loaded[0] if isinstance(loaded, tuple) else loaded)
        except Exception as error:  # noqa: BLE001 - user code runs when its objects are unpickled
            self.functions.append("unresolved")
            self._give_up(f"a Python function that cannot be unpickled ({error})", command)
            return
        self.functions.append(identity.digest)
        for reason in identity.unresolved:
            self._give_up(f"a Python function: {reason}", command)

    def _give_up(self, what: str, command: bytes | None = None) -> None:
        self.unresolved.append(what)
        if command is not None:
            self.opaque.append(hex_digest([command]))


def every_message(message: Message) -> Iterator[Message]:
    """Yield a message, then all messages inside it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            below = [inner for inner in dict(value).values() if isinstance(inner, Message)]
        else:
            below = list(value) if _is_repeated(field) else [value]
        for inner in below:
            yield from every_message(inner)


def _is_repeated(field: Any) -> bool:
    """Return whether a field holds several values. Protobuf 7 has no labels."""
    known = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if known is None else known)


def identify_connect_plan(
    df: DataFrame, stage_of_plan: Callable[[int], str | None]
) -> PlanIdentity:
    """Return the identity of a Spark Connect DataFrame. Asks the server, which may run small jobs.

    Call it under the settings `SHOWN`. Without them more is unresolved, or asked too early.

    If a name refers to something else later in the session, the server's semantic hash
    distinguishes the two, provided that it is equal for equal plans.
    """
    frame: Any = df
    spark = df.sparkSession
    walk = ConnectPlan(stage_of_plan)
    walk.walk(frame._plan.plan(spark.client))  # noqa: SLF001
    shown = shown_plan(frame._explain_string(extended=True))  # noqa: SLF001
    inputs = ConnectInputs(df, shown, walk.sources, walk.aliases).ask()
    unknown = [*walk.unresolved, *shown.unknown, *inputs.unknown, *_functions(df, walk, inputs)]
    for source in walk.sources:
        unknown += [*named_files(source.options), *left_out(source.options, ())]
    if inputs.files or inputs.tables:
        unknown += left_out({}, (spark.conf.get,))
    lists = {
        "plan": walk.tokens,
        "functions": walk.functions,
        "stages_below": walk.stages_below,
        "files": inputs.files,
        "tables": inputs.tables,
        "analyzed": [numbered(shown.analyzed)],
        "schema": [df.schema.json()],
        "settings": [session_settings_digest(spark).of(functions=bool(walk.functions))],
    }
    components = {aspect: hex_digest(parts) for aspect, parts in lists.items()}
    opaque = list(walk.opaque)
    if unknown and walk.by_name and not walk.functions:
        number = df.semanticHash()
        if number == df.alias("same").semanticHash():  # else it hashes memory addresses
            opaque.append(f"plan {number}")
    return PlanIdentity(
        components,
        tuple(f"{w} cannot be recognised in another run: {VOUCH}" for w in dict.fromkeys(unknown)),
        opaque=tuple(opaque),
    )


def _functions(df: DataFrame, walk: ConnectPlan, inputs: Inputs) -> list[str]:
    """Return the functions that are not Spark's own, and what else SQL text calls."""
    in_text: set[str] = set()
    unknown: list[str] = moving_calls(" ".join(f"{name}(" for name in walk.called))
    for text in (*walk.texts, *inputs.texts):
        names, strange = called(text)
        in_text |= names
        unknown += strange
    if walk.called or in_text:
        pattern = function_pattern(walk.called | in_text)
        listed = df.sparkSession.catalog.listFunctions(pattern=pattern)
        classes: dict[str, list[str]] = {}
        for function in listed:
            found = classes.setdefault(function.name.lower(), [])
            found.append(function.className or SPARKS_OWN)
        unknown += not_sparks(walk.called, in_text, classes)
    return unknown
