"""Which tests carry which requirement, noted while a run is collected.

A test of a pure part is marked `requirement("R-…")`, too. Tests in the folders below drive the
product; a test elsewhere says so by `through="product"`.
"""

import pytest

PRODUCT = (
    *("tests/faults/", "tests/pipelines/", "tests/spark/", "tests/storage/", "tests/views/"),
    *(f"tests/unit/recovery/test_async_{name}" for name in ("operator", "map", "step")),
)


class MarkCollector:
    """Takes part in a collection and notes (requirement, test) before anything is deselected."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, str]] = []
        self.product: set[tuple[str, str]] = set()
        """Those marks whose test drives the product."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note the marks of all tests; cases of one function count as one test."""
        for item in items:
            test = item.nodeid.partition("[")[0]
            for mark in item.iter_markers("requirement"):
                marks = [(str(requirement), test) for requirement in mark.args]
                self.marks.extend(marks)
                if test.startswith(PRODUCT) or mark.kwargs.get("through") == "product":
                    self.product.update(marks)
