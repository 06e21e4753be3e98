"""Which tests carry which requirement, noted while a run is collected."""

import pytest


class MarkCollector:
    """Takes part in a collection and notes (requirement, test) before anything is deselected."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note the marks of all tests; cases of one function count as one test."""
        for item in items:
            test = item.nodeid.partition("[")[0]
            for mark in item.iter_markers("requirement"):
                self.marks.extend((str(requirement), test) for requirement in mark.args)
