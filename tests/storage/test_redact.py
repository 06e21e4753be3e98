"""No spelling of a secret survives, and harmless text does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.shuffle.base.redact import redact


@pytest.mark.parametrize(
    "text",
    [
        "https://bob:hunter2@host/path",
        "s3://hunter2@bucket/x",
        "GET https://h/o?X-Amz-Signature=hunter2&x=1",
        "GET https://h/o?a=b&X-Amz-Credential=hunter2%2F2024&X-Amz-Date=1",
        "GET https://h/o?X-Amz-Security-Token=hunter2",
        "https://a.blob.core.windows.net/c/b?sv=2024&sig=hunter2&se=1",
        "https://storage.googleapis.com/b/o?access_token=hunter2",
        "https://h/o?AWSAccessKeyId=hunter2&Signature=hunter2",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2==;EndpointSuffix=x",
        "Authorization: Bearer hunter2",
        "AWS4-HMAC-SHA256 Credential=hunter2/x, Signature=hunter2",
    ],
)
def test_secrets_in_known_places_go(text: str) -> None:
    """URLs, connection strings and headers lose their secrets without any options."""
    assert "hunter2" not in redact(text)


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "hunter2/+ ="},
        {"key": "hunter2/+ ="},
        {"token": b"hunter2/+ ="},
        {"password": "hunter2/+ ="},
        {"account_key": "hunter2/+ ="},
        {"sas_token": "hunter2/+ ="},
        {"connection_string": "hunter2/+ ="},
        {"client_kwargs": {"aws_secret_access_key": "hunter2/+ ="}},
        {"s3_additional_kwargs": {"SSECustomerKey": "hunter2/+ ="}},
        {"token": {"type": "service_account", "pem": ["hunter2/+ ="]}},
    ],
)
@pytest.mark.parametrize("form", ["hunter2/+ =", "hunter2/%2B%20%3D", "hunter2%2F%2B+%3D"])
def test_secret_options_go_in_every_spelling(options: dict[str, object], form: str) -> None:
    """The value of a secret option is blanked as it is and as URLs spell it, at any depth."""
    assert redact(f"<{form}>", options) == "<***>"


def test_keys_of_bytes_go_as_headers_carry_them() -> None:
    """Servers and clients quote headers, which hold such keys in base64."""
    options = {"s3_additional_kwargs": {"SSECustomerKey": b"\x01\x02" * 16}}
    assert redact("found=AQIBAgECAQIBAgECAQIBAgECAQIBAgECAQIBAgECAQI=", options) == "found=***"


def test_short_secrets_go_without_ruining_the_text() -> None:
    """A secret of three letters is blanked where it stands alone."""
    assert redact("abc in abcdef: 'abc'", {"secret": "abc"}) == "*** in abcdef: '***'"


def test_secret_that_repr_escapes_goes() -> None:
    """Errors often show values by repr."""
    options = {"secret": "line\nbreak\\slash"}
    assert redact(f"found={options['secret']!r}", options) == "found='***'"


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/job/stage-12/log/0000000001: object does not exist",
        "https://host/path?list-type=2&prefix=a%2Fb",
        "region us-east-1, endpoint http://127.0.0.1:8333",
        "mail bob@host.example",
    ],
)
def test_harmless_text_stays(text: str) -> None:
    """Options that are no secrets, and plain URLs, are left alone."""
    assert redact(text, {"endpoint_url": "http://127.0.0.1:8333", "anon": False}) == text


@given(
    secret=st.text(min_size=4, max_size=60).filter(lambda s: s.strip() == s and "***" not in s),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_no_secret_survives_any_context(secret: str, before: str, after: str) -> None:
    """Whatever stands around it, the value of a secret option is gone."""
    shown = redact(before + secret + after, {"secret": secret})
    assert secret not in shown.replace("***", "\0")
