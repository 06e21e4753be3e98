"""How often Spark runs a failing task, by its master."""

import pytest

from durable_shuffle.jobs.deploy.preflight import task_tries


@pytest.mark.parametrize(
    ("master", "configured", "tries"),
    [
        ("local", None, 1),
        ("local[4]", None, 1),
        ("local[*]", "4", 1),  # Spark does not look at it
        ("local[2,3]", None, 3),
        ("local[*, 2]", "9", 2),
        ("local-cluster[2,1,1024]", None, 4),
        ("local-cluster[2,1,1024]", "2", 2),
        ("spark://host:7077", None, 4),
        ("yarn", "8", 8),
    ],
)
def test_tries_by_master(master: str, configured: str | None, tries: int) -> None:
    """A local session retries only what its master says."""
    assert task_tries(master, configured) == tries
