"""Storage options of s3fs, translated for obstore. No I/O.

Users write options in s3fs's words (`key`, `secret`, `endpoint_url`, `client_kwargs`). What has an
exact twin in obstore is translated. With any other option, s3fs itself serves the storage: it is
slower and honours them all. So no option is ever ignored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CONNECT_SECONDS = 60
READ_SECONDS = 60
"""Like botocore's: a connection that stands still for so long has failed."""

_CREDENTIALS = ("key", "secret", "token")
_OF_CLIENT = {
    "endpoint_url": "endpoint_url",
    "region_name": "region",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
}
_KINDS = ("AES256", "aws:kms", "aws:kms:dsse")
_CHANGES_MORE = (
    "AWS_PROFILE",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_USE_DUALSTACK_ENDPOINT",
)
"""Variables that botocore obeys and obstore does not."""


@dataclass(frozen=True, slots=True)
class S3Settings:
    """What obstore's client is made of."""

    bucket: str
    prefix: str
    config: dict[str, Any] = field(repr=False)
    client: dict[str, Any]
    credentials: dict[str, str] | None = field(default=None, repr=False)
    """Those that the user gave; None to look in the environment."""
    ca_bundle: str = ""
    """File of certificates to trust besides the machine's."""


class _OtherOptionError(Exception):
    """An option has no exact twin."""


def translate(
    bucket: str, prefix: str, options: Mapping[str, object], environment: Mapping[str, str]
) -> S3Settings | None:
    """Return obstore's settings for options of s3fs; None if only s3fs honours all of them.

    Args:
        environment: the process's variables.
    """
    try:
        found = _translated(bucket, prefix, options, environment)
    except _OtherOptionError:
        return None
    known = found.config.get("skip_signature") or found.credentials
    # else: a profile, a login, the instance's role. botocore says at once if there is none
    return found if known or _named(environment) else None


def _named(environment: Mapping[str, str]) -> bool:
    """Return whether obstore finds the credentials that the variables name, and renews them.

    It looks in botocore's order. It takes a container's address only with a token in a file, and
    asks no token service over plain HTTP.
    """

    def has(name: str) -> bool:
        return bool(environment.get(name))

    if has("AWS_ACCESS_KEY_ID"):
        return True
    if has("AWS_WEB_IDENTITY_TOKEN_FILE"):
        plain = environment.get("AWS_ENDPOINT_URL_STS", "").startswith("http:")
        return has("AWS_ROLE_ARN") and not plain
    if has("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        return True
    return has("AWS_CONTAINER_CREDENTIALS_FULL_URI") and has(
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
    )


def _translated(
    bucket: str, prefix: str, options: Mapping[str, object], environment: Mapping[str, str]
) -> S3Settings:
    if any(environment.get(name) for name in _CHANGES_MORE):
        raise _OtherOptionError
    given: dict[str, str] = {}
    client: dict[str, Any] = {
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "read_timeout": f"{READ_SECONDS}s",
        "timeout": "1 day",
    }
    config: dict[str, Any] = {"conditional_put": "etag"}
    for name, value in options.items():
        if value is None:
            continue
        if name in (*_CREDENTIALS, "endpoint_url"):
            given[name] = _text(value)
        elif name == "anon":
            config["skip_signature"] = _flag(value)
        elif name == "requester_pays":
            config["request_payer"] = _flag(value)
        elif name == "client_kwargs":
            for inner, one in _mapping(value).items():
                if inner not in _OF_CLIENT:
                    raise _OtherOptionError
                given.setdefault(_OF_CLIENT[inner], _text(one))
        elif name == "config_kwargs":
            _take(_mapping(value), {"connect_timeout": _seconds, "read_timeout": _seconds}, client)
        elif name == "s3_additional_kwargs":
            words = {"ServerSideEncryption": _kind, "SSEKMSKeyId": _text}
            found: dict[str, Any] = {}
            _take(_mapping(value), words, found)
            config["server_side_encryption"] = found.get("ServerSideEncryption")
            config["sse_kms_key_id"] = found.get("SSEKMSKeyId")
        else:
            raise _OtherOptionError
    return _settled(bucket, prefix, given, config, client, environment)


def _settled(
    bucket: str,
    prefix: str,
    given: Mapping[str, str],
    config: dict[str, Any],
    client: dict[str, Any],
    environment: Mapping[str, str],
) -> S3Settings:
    endpoint = (
        given.get("endpoint_url")
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
    )
    region = (
        given.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
    )
    if endpoint:
        if not endpoint.startswith(("http://", "https://")) or "@" in endpoint:
            raise _OtherOptionError
        client["allow_http"] = endpoint.startswith("http://")
        config["endpoint"] = endpoint.rstrip("/")
    elif (
        not region or "." in bucket
    ):  # botocore finds the region; TLS has no name for such a bucket
        raise _OtherOptionError
    config["region"] = region or "us-east-1"
    credentials = {name: given[name] for name in _CREDENTIALS if name in given}
    if credentials and not ("key" in credentials and "secret" in credentials):
        raise _OtherOptionError
    config = {name: value for name, value in config.items() if value is not None}
    bundle = "" if client.get("allow_http") else environment.get("AWS_CA_BUNDLE", "")
    return S3Settings(bucket, prefix, config, client, credentials or None, bundle)


def _take(
    found: Mapping[str, object], words: Mapping[str, Callable[[object], Any]], into: dict[str, Any]
) -> None:
    for name, value in found.items():
        if name not in words:
            raise _OtherOptionError
        into[name] = words[name](value)


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _OtherOptionError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _OtherOptionError
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _OtherOptionError
    return value


def _seconds(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise _OtherOptionError
    return f"{round(value * 1000)}ms"


def _kind(value: object) -> str:
    if value not in _KINDS:
        raise _OtherOptionError
    return str(value)
