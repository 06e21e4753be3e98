"""Options of s3fs are translated for obstore one by one, or s3fs serves them: none is ignored."""

from collections.abc import Mapping
from typing import Any

import pytest

from durable_shuffle.shuffle.storage.s3_options import S3Settings, translate

HERE = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s"}
REGION = {"AWS_REGION": "eu-west-1"}


def made(
    options: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> S3Settings | None:
    return translate("bucket", "a/b", options, environment or {})


@pytest.mark.parametrize(
    ("options", "config", "client"),
    [
        (HERE, {"endpoint": "http://127.0.0.1:1", "region": "us-east-1"}, {"allow_http": True}),
        ({**HERE, "client_kwargs": {"region_name": "eu-west-1"}}, {"region": "eu-west-1"}, {}),
        ({**HERE, "endpoint_url": "https://h/"}, {"endpoint": "https://h"}, {"allow_http": False}),
        ({**HERE, "requester_pays": True}, {"request_payer": True}, {}),
        ({"endpoint_url": "https://h", "anon": True}, {"skip_signature": True}, {}),
        ({**HERE, "config_kwargs": {"read_timeout": 1.5}}, {}, {"read_timeout": "1500ms"}),
        (
            {**HERE, "s3_additional_kwargs": {"ServerSideEncryption": "AES256"}},
            {"server_side_encryption": "AES256"},
            {},
        ),
        (
            {
                **HERE,
                "s3_additional_kwargs": {
                    "ServerSideEncryption": "aws:kms",
                    "SSEKMSKeyId": "alias/x",
                },
            },
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "alias/x"},
            {},
        ),
    ],
)
def test_each_known_option_has_a_twin(
    options: Mapping[str, object], config: dict[str, Any], client: dict[str, Any]
) -> None:
    """What the user wrote stands in obstore's settings, and the create is always conditional."""
    found = made(options)
    assert found is not None
    assert config.items() <= found.config.items()
    assert client.items() <= found.client.items()
    assert found.config["conditional_put"] == "etag"


@pytest.mark.parametrize(
    "change",
    [
        {"profile": "p"},
        {"use_ssl": False},
        {"no_such_option": 1},
        {"endpoint_url": "no-url"},
        {"endpoint_url": "http://user:password@h"},
        {"secret": None},
        {"key": 5},
        {"anon": "yes"},
        {"config_kwargs": 5},
        {"config_kwargs": {"proxies": {}}},
        {"config_kwargs": {"s3": {"addressing_style": "virtual"}}},
        {"client_kwargs": {"verify": False}},
        {"s3_additional_kwargs": {"SSECustomerKey": b"k" * 32}},
        {"s3_additional_kwargs": {"ServerSideEncryption": "new"}},
    ],
    ids=repr,
)
def test_any_other_option_is_served_by_s3fs(change: dict[str, object]) -> None:
    """An option that is unknown here, or has a value of another form, is left to s3fs."""
    assert made({**HERE, **change}) is None


def test_credentials_come_from_one_place() -> None:
    """Those that are given are used whole; else obstore looks where botocore would look first."""
    given = made({**HERE, "token": "t"}, {"AWS_SESSION_TOKEN": "of another key"})
    assert given is not None
    assert given.credentials == {"key": "k", "secret": "s", "token": "t"}
    assert "secret" not in repr(given).replace("'secret'", "")
    assert made({}, REGION) is None  # a profile, a login, an instance's role: botocore knows
    named: list[dict[str, str]] = [
        {"AWS_ACCESS_KEY_ID": "x"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "x", "AWS_ROLE_ARN": "x"},
        {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "x"},
        {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "x",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "x",
        },
    ]
    for found in named:
        assert made({}, {**REGION, **found}) is not None
    # obstore looks elsewhere then, or cannot ask
    assert made({}, {**REGION, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "x"}) is None
    assert made({}, {**REGION, "AWS_WEB_IDENTITY_TOKEN_FILE": "x"}) is None
    assert made({}, {**REGION, **named[1], "AWS_ENDPOINT_URL_STS": "http://sts"}) is None
    assert made({}, {**REGION, "AWS_PROFILE": "p"}) is None


def test_a_bucket_of_unknown_region_is_served_by_s3fs() -> None:
    """botocore follows the bucket to its region; obstore must be told it."""
    assert made({"key": "k", "secret": "s"}) is None
    assert made({"key": "k", "secret": "s"}, REGION) is not None
    assert translate("with.dots", "", {"anon": True}, REGION) is None


def test_certificates_of_the_machine_are_named_where_they_count() -> None:
    """AWS_CA_BUNDLE is for TLS."""
    bundle = {"AWS_CA_BUNDLE": "/certificates"}
    plain, secure = made(HERE, bundle), made({**HERE, "endpoint_url": "https://h"}, bundle)
    assert plain is not None
    assert secure is not None
    assert (plain.ca_bundle, secure.ca_bundle) == ("", "/certificates")
