"""Server-side encryption by storage options, on the real S3 server: every write asks for it."""

import random
from base64 import b64encode
from typing import Any

import pytest
from sealed_stage import sealed_stage
from small_stage import SeededIds, read_rows

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import require_seal
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.testing.s3_server import S3Server

pytestmark = pytest.mark.s3

KEY = bytes(range(100, 132))
KINDS: dict[str, tuple[dict[str, object], str]] = {
    "server's key": ({"ServerSideEncryption": "AES256"}, "x-amz-server-side-encryption"),
    "own key": (
        {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY},
        "x-amz-server-side-encryption-customer-key-MD5",
    ),
}


@pytest.fixture
def url(s3_server: S3Server) -> str:
    """A folder of the bucket that nobody else uses."""
    return f"s3://{s3_server.bucket}/{RandomIds().new_id()}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_write_asks_for_encryption(s3_server: S3Server, url: str, kind: str) -> None:
    """Slots, segments and indexes, also those of a compaction; all reads work as ever."""
    arguments, header = KINDS[kind]
    storage = FsspecStorage(url, {**s3_server.options, "s3_additional_kwargs": arguments})
    filesystem, _ = storage._connect()
    asked: list[bool] = []

    def look(request: Any, **_: object) -> None:
        if request.method == "PUT":
            asked.append(header.lower() in {name.lower() for name in request.headers})

    filesystem.s3.meta.events.register("before-send.s3", look)
    ids = SeededIds(random.Random(1))
    made = sealed_stage(storage, ids, producers=3, partitions=2, rows=20)
    assert compact_stage(made.stage, ids=ids, generation=1, settings=Settings()).won
    for k in range(2):
        rows = read_rows(made.stage, require_seal(made.stage), k, Settings())
        assert [row["n"] for row in rows] == made.of(k)
    assert len(asked) >= 3 * 2 + 2 + 2
    assert all(asked)
    assert storage.put_if_absent("a", b"mine") == Created()
    assert storage.put_if_absent("a", b"other") == Exists(b"mine")
    keys = [info.key for info in storage.list("")]
    for secret in (s3_server.secret.encode(), s3_server.key.encode(), KEY, b64encode(KEY)):
        assert not [key for key in keys if secret in storage.read(key)], "stored beside the data"
    storage.delete(keys)
    assert list(storage.list("")) == []


@pytest.mark.parametrize("wrong", [{}, {**KINDS["own key"][0], "SSECustomerKey": KEY[::-1]}])
def test_without_the_key_nothing_is_read(
    s3_server: S3Server, url: str, wrong: dict[str, object]
) -> None:
    """The server refuses, the error is ours, and shows no key in any spelling."""
    options = {**s3_server.options, "s3_additional_kwargs": KINDS["own key"][0]}
    FsspecStorage(url, options).put("a", [b"secret rows"])
    other = FsspecStorage(url, {**s3_server.options, "s3_additional_kwargs": wrong})
    with pytest.raises(InvalidInputError, match="cannot read a") as caught:
        other.read("a")
    for key in (KEY, KEY[::-1]):
        assert b64encode(key).decode() not in str(caught.value)
        assert key.decode("latin-1") not in str(caught.value)
