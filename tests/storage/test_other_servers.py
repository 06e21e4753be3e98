"""The conformance kit on servers that speak other clouds' protocols."""

from collections.abc import Iterator

import pytest
from around_storage import AroundStorage
from cloud_servers import EVERY, CannotInstallError, Place

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module", params=EVERY)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A running server, of each kind in turn."""
    try:
        with EVERY[request.param](tmp_path_factory.mktemp("server") / "data") as found:
            yield found
    except CannotInstallError as error:
        pytest.skip(str(error))


class TestOtherServers(AroundStorage):
    """All laws."""
