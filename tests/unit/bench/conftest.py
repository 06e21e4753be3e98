"""The command line, for tests of the demos and benchmarks that it starts."""

from collections.abc import Callable

import pytest
from click.testing import Result
from typer.testing import CliRunner

from durable_shuffle.jobs.cli.app import app


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run a command; a traceback on either stream fails the test."""

    def call(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert "Traceback" not in result.output
        return result

    return call
