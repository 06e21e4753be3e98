"""Servers of the Connect protocol that cannot run our tasks are refused by name."""

from typing import Any, cast

import pytest
from pyspark.errors import UnsupportedOperationException

from durable_shuffle.jobs.deploy.ship import ship
from durable_shuffle.serialization.errors import IncompatibleError


def test_a_server_that_takes_no_code_is_refused() -> None:
    """Sail 0.7 answers in this way."""

    class Session:
        def addArtifacts(self, *_: str, pyfile: bool) -> None:
            assert pyfile
            raise UnsupportedOperationException("handle add artifacts")

    Session.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(IncompatibleError, match=r"takes no Python code .*handle add artifacts"):
        ship(cast("Any", Session()))
