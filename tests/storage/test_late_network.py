"""The network that answers late, in front of a real S3 server."""

import time

import pytest

from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.testing.late_network import late_network
from durable_shuffle.shuffle.testing.s3_server import S3Server

pytestmark = pytest.mark.s3

LATE_SECONDS = 0.2


def test_each_request_is_late_and_those_side_by_side_are_late_once(s3_server: S3Server) -> None:
    """Bytes arrive unchanged; a request takes the delay at least, 40 at once not much longer."""
    url = f"s3://{s3_server.bucket}/{RandomIds().new_id()}"
    with late_network(s3_server.endpoint, LATE_SECONDS) as late:
        storage = open_storage(url, {**s3_server.options, "endpoint_url": late.endpoint})
        data = bytes(range(256)) * 4096
        storage.put("a", [data])
        start = time.monotonic()
        assert storage.read("a", most_bytes=len(data)) == data
        assert time.monotonic() - start >= LATE_SECONDS
        start = time.monotonic()
        found = storage.read_ranges([ByteRange("a", n * 100, 100) for n in range(40)])
        took = time.monotonic() - start
        assert [bytes(view) for view in found] == [data[n * 100 : n * 100 + 100] for n in range(40)]
        assert LATE_SECONDS <= took < 20 * LATE_SECONDS
