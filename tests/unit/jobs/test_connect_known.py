"""Texts of a Connect server's plans, and SQL text: what is not known is named, never skipped."""

import re

import pytest

from durable_shuffle.jobs.identity.connect import known

OWN = "org.apache.spark.sql.catalyst.expressions.Upper"


def explained(*lines: str, columns: str = "a: int", optimized: str = "Range (0, 1)") -> str:
    """Return the text of a server's `explain`."""
    tree = "\n".join(lines)
    return (
        f"== Parsed Logical Plan ==\n{tree}\n\n== Analyzed Logical Plan ==\n{columns}\n{tree}\n\n"
        f"== Optimized Logical Plan ==\n{optimized}\n\n== Physical Plan ==\nRange (0, 1)\n"
    )


def test_leaves_are_found_below_operators_and_in_subqueries() -> None:
    """Tables by name, files by path, views as the server quotes them."""
    shown = known.shown_plan(
        explained(
            "Project [a#1]",
            "+- Filter (a#1 > scalar-subquery#2 [])",
            "   :  +- Relation c.d.t[a#3,b#4] parquet",
            "   +- Join Inner",
            "      :- View (`c`.`d`.`v`, [a#1])",
            "      :  +- RelationV2[a#1] ice.d.u ice.d.u",
            "      :- RelationV2[a#1] ice.d.w VERSION AS OF '91'",
            "      +- Relation [a#5] csv",
        )
    )
    assert shown.unknown == ()
    assert (shown.tables, shown.views) == (
        ("c.d.t", "ice.d.u", "ice.d.w"),
        ("`c`.`d`.`v`",),
    )
    assert (shown.files, shown.subqueries) == (1, True)


@pytest.mark.parametrize(
    "line",
    [
        "LogicalRDD [a#1], false",
        "HiveTableRelation [`d`.`t`, org.Serde, Data Cols: [a#1]]",
        "Relation [a#1] JDBCRelation(t) [numPartitions=1]",
        "Relation c.d.with space[a#1] parquet",
        "RelationV2[a#1] made_by_python",
        "View (v, [a#1])",
        "OfTheFuture [a#1]",
        "!Project [a#1]",
    ],
)
def test_an_unknown_line_is_named(line: str) -> None:
    """An operator, a relation or a form that is not on the list."""
    (reason,) = known.shown_plan(explained("Project [a#1]", f"+- {line}")).unknown
    assert line[:30] in reason


def test_cut_or_doubled_sections_are_no_plan() -> None:
    """A server without these headers, and text of the user that has one of them."""
    whole = explained("Range (0, 1)")
    for header in re.findall(r"== .* ==\n", whole):
        assert known.shown_plan(whole.replace(header, "")).unknown
        assert known.shown_plan(whole + header).unknown
    assert known.shown_plan(whole).unknown == ()


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("cast(concat(to, day) as date)", "as a date"),
        ("to_timestamp(now, None, Some(UTC), true)", "as a date"),
        ("current_timestamp()", "current_timestamp"),
        ("variablereference(system.session.x=1)", "a variable"),
    ],
)
def test_values_of_a_run_are_named(expression: str, reason: str) -> None:
    """Constants that another run would compute anew."""
    (found,) = known.shown_plan(explained(f"Project [{expression} AS a#1]")).unknown
    assert reason in found
    for constant in ("cast(2026-11-23 as date)", "cast(a#2 as date)", "cast(x as string)"):
        assert known.shown_plan(explained(f"Project [{constant} AS a#1]")).unknown == ()


def test_cached_rows_are_named() -> None:
    """The server reads them instead of the inputs that it shows."""
    text = explained("Range (0, 1)", optimized="InMemoryRelation [a#1], StorageLevel(memory)")
    assert known.shown_plan(text).unknown == ("a DataFrame that is cached on the server",)


@pytest.mark.parametrize(
    "text",
    [
        "select d.f(x) from t",
        "select `f`(x) from t",
        "select * from parquet.`/x`",
        "select * from `csv`.x",
        "select DATE ' Today'",
        "select Current_Date",
        "select uuid()",
    ],
)
def test_sql_text_that_is_not_known_is_named(text: str) -> None:
    """Functions and files by other names, values of a run."""
    assert known.called(text)[1]


def test_names_in_sql_text() -> None:
    """Keywords and aliases call nothing."""
    text = "select Upper(a), f (b) from values (1) as t(a) where a in (1) and current_price > 0"
    assert known.called(text) == ({"upper", "f"}, [])


def test_functions_that_are_not_sparks() -> None:
    """By class; by name, if SQL text calls what the server does not list; and if it lists two."""
    classes = {"upper": [OWN], "f": ["org.User"], "trim": [OWN, OWN]}
    assert known.not_sparks({"upper", "==", "f", "d.g", "trim"}, {"upper", "h"}, classes) == [
        f"the function {name}, which is not Spark's own," for name in ("d.g", "f", "h", "trim")
    ]


def test_patterns_find_operators_by_name() -> None:
    """The catalog takes alternatives of regular expressions, where `*` has another meaning."""
    names = {"upper", "+", "*", "||", "=="}
    parts = known.function_pattern(names).split("|")
    assert {n for n in names for part in parts if re.fullmatch(part, n)} == names
    assert len(parts) == len(names)
    assert all("*" not in part for part in parts)
