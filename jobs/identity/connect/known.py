"""What is known of plans on Spark Connect: lists, and functions of texts. No I/O.

Whatever is not on these lists makes an input unresolved by its name: an operator or an expression
of a newer client, an operator of the server, a source, a function that is not Spark's own.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

RELATIONS = frozenset(
    {
        *("read", "project", "filter", "join", "set_op", "sort", "limit", "aggregate", "sql"),
        *("local_relation", "cached_local_relation", "chunked_cached_local_relation"),
        *("sample", "offset", "deduplicate", "range", "subquery_alias", "repartition", "to_df"),
        *("with_columns_renamed", "drop", "tail", "with_columns", "hint", "unpivot", "to_schema"),
        *("repartition_by_expression", "map_partitions", "group_map", "co_group_map", "parse"),
        *("as_of_join", "lateral_join", "with_relations", "fill_na", "drop_na", "replace"),
    }
)
"""Operators of the client whose rows follow from their arguments and inputs."""
EXPRESSIONS = frozenset(
    {
        *("literal", "unresolved_attribute", "unresolved_function", "expression_string"),
        *("unresolved_star", "alias", "cast", "unresolved_regex", "sort_order", "window"),
        *("lambda_function", "unresolved_extract_value", "update_fields"),
        *("unresolved_named_lambda_variable", "common_inline_user_defined_function"),
        *("call_function", "named_argument_expression", "subquery_expression"),
        "direct_shuffle_partition_id",
    }
)
FILE_FORMATS = frozenset({"parquet", "orc", "csv", "json", "text", "avro", "xml", "binaryfile"})
"""Sources whose rows follow from path, length and time of their files."""
TABLE_FORMATS = frozenset({"parquet", "orc"})
"""File formats of tables of the catalog whose files Spark reports without reading them whole."""
_OPERATORS = frozenset(
    {
        *("Project", "Filter", "Join", "Aggregate", "Sort", "GlobalLimit", "LocalLimit", "Offset"),
        *("Tail", "Union", "Intersect", "Except", "Distinct", "Deduplicate", "SubqueryAlias"),
        *("Range", "LocalRelation", "OneRowRelation", "Window", "Generate", "Expand", "Unpivot"),
        *("Repartition", "RepartitionByExpression", "RebalancePartitions", "Sample", "WithCTE"),
        *("CTERelationDef", "CTERelationRef", "ResolvedHint", "AsOfJoin", "LateralJoin"),
        *("MapInArrow", "MapInPandas", "PythonMapInArrow", "FlatMapGroupsInPandas"),
        *("FlatMapGroupsInArrow", "FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow"),
    }
)
"""Operators of the server's analyzed plan; views and relations are looked at one by one."""
_HEADERS = tuple(
    f"== {name} Plan ==\n" for name in ("Parsed Logical", "Analyzed Logical", "Optimized Logical")
)
_PHYSICAL = "== Physical Plan ==\n"
_LINE = re.compile(r"[ :|+-]*(?P<name>[A-Za-z]\w*)(?P<rest>.*)")
_RELATION = re.compile(r" (?P<table>[A-Za-z0-9_.]*)\[[^\n]*\] (?P<format>\w+)")
_RELATION_V2 = re.compile(r"\[[^\n]*\] (?P<table>[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)+)(?: .*)?")
"""A table with its catalog; then its own name, or the version that was asked for."""
_VIEW = re.compile(r" \((?P<name>(?:`[A-Za-z0-9_]+`\.?)+), \[")
_BY_PATH = re.compile(
    rf"(?i)\b(?:{'|'.join(sorted(FILE_FORMATS))}|delta|iceberg|hive|jdbc)`?\s*\.|\.\s*`"
)
"""A format's name before a path, or any name in backticks after a dot."""
_SUBQUERY = re.compile(r"(?:subquery|exists|list)#\d+ \[")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_NAMED_COLUMNS = re.compile(r"(?i)\bas\s+[A-Za-z_]\w*\s*\(")
"""`AS t(a, b)`, which calls nothing."""
_QUALIFIED = re.compile(r"[.`]\s*`?\w*`?\s*\(|`\s*\(")
_MOVING = re.compile(
    r"(?i)\b(current_(?:date|time|timestamp|timezone|user|catalog|database|schema|path)|curdate"
    r"|localtime(?:stamp)?|session_user)\b"
    r"|\b(now|user|uuid|reflect|java_method|try_reflect|aes_encrypt|raise_error)\s*\("
)
"""Names of what may differ in another run."""
_SPECIAL_TEXT = re.compile(r"(?i)['\"]\s*(now|today|tomorrow|yesterday)\b")
_TO_TIME = re.compile(r"(?i)\b(?:try_)?(?:cast|to_date|to_timestamp\w*|date|timestamp\w*)\(")
_TIME_TYPES = (" as date", " as timestamp", " as timestamp_ntz", " as timestamp_ltz")
_KEYWORDS = frozenset(
    {
        *("all", "and", "any", "array", "as", "between", "bigint", "binary", "by", "case", "cast"),
        *("char", "cube", "date", "day", "decimal", "distinct", "else", "except", "exists"),
        *("extract", "filter", "for", "from", "having", "hour", "in", "int", "intersect"),
        *("interval", "is", "join", "lateral", "like", "limit", "map", "minute", "month", "not"),
        *("numeric", "offset", "on", "or", "order", "over", "partition", "pivot", "rollup"),
        *("rows", "second", "select", "sets", "some", "string", "struct", "table", "then"),
        *("timestamp", "union", "unpivot", "using", "values", "varchar", "when", "where", "with"),
        *("within", "year"),
    }
)
"""Words that may stand before a parenthesis in SQL text and call no function."""
ANEW = {"spark.connect.session.planCache.enabled": "false"}
"""Setting under which the server resolves each plan anew, so no list of files is an old one."""
SHOWN = {
    **ANEW,
    "spark.sql.debug.maxToStringFields": str(2**31 - 1),
    "spark.sql.maxPlanStringLength": str(2**31 - 17),
}
"""Settings under which, besides, the text of a plan is not cut."""
DRAWN = r"\b_pyspark_connect_temp_view_[0-9a-f]{32}\b"
"""Name of a frame that `sql("... {df}", df=df)` puts into a text."""
_COUNTERS = re.compile(rf"#\d+L?|plan_id=\d+|\b[A-Za-z]\w*_\d+(?=#)|{DRAWN}")
_PLACES = re.compile(r"@[0-9a-f]+|Lambda\$?\d*/0x[0-9a-f]+")
SPARKS_OWN = "org.apache.spark.sql.catalyst."
"""Package of the classes behind Spark's own functions. Operators such as `||` have no class."""


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """What the server's text of a plan shows."""

    analyzed: str
    unknown: tuple[str, ...]
    """What is not known, in the user's words."""
    files: int
    """How often files are read by their path."""
    tables: tuple[str, ...]
    """Names of the catalog's tables that are read, with their catalogs, sorted."""
    views: tuple[str, ...]
    """Names of the views, as the server quotes them, sorted."""
    subqueries: bool


def shown_plan(text: str) -> ShownPlan:
    """Read the text of `explain` in its extended form, with nothing cut.

    Text that users wrote stands unquoted in it. So it may add lines, but never hide one.
    """
    if any(text.count(header) != 1 for header in (*_HEADERS, _PHYSICAL)):
        return ShownPlan("", ("what this server plans",), 0, (), (), subqueries=False)
    _, _, rest = text.partition(_HEADERS[1])
    analyzed, _, rest = rest.partition(_HEADERS[2])
    optimized = rest.partition(_PHYSICAL)[0]
    _, _, tree = analyzed.partition("\n")  # the first line lists the columns
    unknown: list[str] = []
    files, tables, views = 0, set(), set()
    for line in filter(None, tree.rstrip("\n").split("\n")):
        found = _LINE.fullmatch(line)
        name, rest = (found["name"], found["rest"]) if found else ("", line)
        if name == "Relation" and (relation := _RELATION.fullmatch(rest)):
            files += not relation["table"]
            tables |= {relation["table"]} - {""}
        elif name == "RelationV2" and (relation := _RELATION_V2.fullmatch(rest)):
            tables.add(relation["table"])
        elif name == "View" and (view := _VIEW.match(rest)):
            views.add(view["name"])
        elif name not in _OPERATORS:
            shown = line.strip(" :|+-")
            unknown.append(f"the input or operator {shown[:60]!r} of the server's plan")
    if "InMemoryRelation" in optimized:
        unknown.append("a DataFrame that is cached on the server")
    if "variablereference(" in analyzed:
        unknown.append("a variable of the session")
    unknown += moving_calls(analyzed)
    if any(not re.match(r"(?:cast\()*\s*[-+\d]", value) for value in _constants_to_time(tree)):
        unknown.append("a constant text as a date or a timestamp")
    return ShownPlan(
        tree,
        tuple(dict.fromkeys(unknown)),
        files,
        tuple(sorted(tables)),
        tuple(sorted(views)),
        subqueries=_SUBQUERY.search(tree) is not None,
    )


def moving_calls(text: str) -> list[str]:
    """Return what differs between runs in SQL text, or in the text of a plan, for people."""
    found = (call or function for call, function in _MOVING.findall(text))
    return sorted({f"what {name.lower()}() gives" for name in found})


def _constants_to_time(text: str) -> Iterator[str]:
    """Yield what is turned into a date or a timestamp and depends on no column."""
    for start in _TO_TIME.finditer(text):
        inside = _balanced(text, start.end())
        to_time = inside.rstrip().lower().endswith(_TIME_TYPES)
        if re.search(r"#\d", inside) or ("cast(" in start[0].lower() and not to_time):
            continue
        yield inside


def _balanced(text: str, start: int) -> str:
    """Return the text up to the parenthesis that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return text[start:at]
    return text[start:]


def called(text: str) -> tuple[set[str], list[str]]:
    """Return the names of the functions that SQL text may call, and what is not known in it."""
    bare = _NAMED_COLUMNS.sub("as (", text)
    names = {name.lower() for name in _CALL.findall(bare)} - _KEYWORDS
    unknown = moving_calls(text)
    if _QUALIFIED.search(bare):
        unknown.append("a function that SQL text names with its database or in backticks")
    if _BY_PATH.search(text):
        unknown.append("files that SQL text names by their path, or a quoted name,")
    if _SPECIAL_TEXT.search(text):
        unknown.append("'now', 'today', 'tomorrow' or 'yesterday' in SQL text")
    return names, unknown


def not_sparks(
    called_by_name: set[str], called_in_text: set[str], classes: Mapping[str, Collection[str]]
) -> list[str]:
    """Return the functions that are not known to be Spark's own, in the user's words.

    Args:
        called_by_name: names in the client's messages; operators are among them, which have no
            class.
        called_in_text: names in SQL text.
        classes: name of each function of the server, in lower case -> names of its classes.
    """
    strange = {
        name
        for name in called_by_name | called_in_text
        if not all(one.startswith(SPARKS_OWN) for one in classes.get(name, ()))
        or len(classes.get(name, ())) > 1  # the session has one of the same name
    }
    strange |= {name for name in called_by_name if "." in name and name not in classes}
    strange |= called_in_text - classes.keys()
    return [f"the function {name}, which is not Spark's own," for name in sorted(strange)]


def numbered(plan: str) -> str:
    """Return an analyzed plan, its ids numbered by first appearance, without memory addresses."""
    numbers: dict[str, str] = {}
    text = _COUNTERS.sub(lambda m: numbers.setdefault(m[0], f"#{len(numbers)}"), plan.strip())
    return _PLACES.sub("@", text)


def function_pattern(names: Iterable[str]) -> str:
    """Return the pattern by which the catalog finds the functions of these names, in any case."""
    return "|".join(
        "".join(c if c.isalnum() or c == "_" else f"\\x{ord(c):02x}" for c in name)
        for name in sorted(names)
        if name.isascii()
    )
