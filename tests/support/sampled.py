"""Of a test with many cases some always run, the others in soak: `@pytest.mark.sampled(3)`."""

from collections import defaultdict

import pytest


class Sampled:
    """Takes part in a collection and marks cases beyond the sample as soak."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep as many cases as the mark says, from the first to the last in even steps, the same
        ones in every run."""
        cases: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            if item.get_closest_marker("sampled") and not item.get_closest_marker("soak"):
                cases[item.nodeid.partition("[")[0]].append(item)
        for found in cases.values():
            (wanted,) = found[0].get_closest_marker("sampled").args  # type: ignore[union-attr]
            kept = {len(found) * i // wanted for i in range(wanted)}
            for number, item in enumerate(found):
                if len(found) > wanted and number not in kept:
                    item.add_marker(pytest.mark.soak)
