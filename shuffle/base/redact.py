"""Keep credentials out of messages and logs.

Strategy: mask the values of storage options whose names look secret, in every spelling; then mask
the places where URLs and headers carry secrets. Masking too much is fine, masking too little is
not.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus

MASK = "***"

_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|token|credential|sas|private|signature|authorization|cookie"
    r"|connection_string|(^|[._-])(key|pwd|auth|user|username)$|(access|account|api)_?key|customer_?key",
    re.IGNORECASE,
)
_URL_USER = re.compile(r"(?<=:/)(?P<slash>/?)[^/\s'\"]+@")
_QUERY_VALUE = re.compile(
    r"(?P<name>[?&;](?:amp;)?(?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature"
    r"|sig|awsaccesskeyid|googleaccessid|access_token|token|key|password|secret)=)[^&\s'\"<>;]+",
    re.IGNORECASE,
)
_CONNECTION_STRING = re.compile(r"(?P<name>(?:AccountKey|SharedAccessSignature)=)[^;\s'\"]+")
_HEADER = re.compile(
    r"(?P<name>\b(?:Bearer|Basic|AWS4-HMAC-SHA256|SharedKey(?:Lite)?)\s+)[^\s'\"][^'\"\n]*"
)
_SHORTEST_SUBSTRING = 4
"""A shorter secret is masked only as a whole word, or the text would become unreadable."""


def redact(text: str, options: Mapping[str, object] | None = None) -> str:
    """Return `text` with the secrets of `options`, URLs and headers replaced by `MASK`.

    The name of an option says whether it is secret, at any depth. All values below a secret name
    are secret. Not guaranteed: a secret that is neither in the options nor in a known place of a
    URL or header stays readable.
    """
    secrets = {form for value in _secrets(options or {}, secret=False) for form in _forms(value)}
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= _SHORTEST_SUBSTRING:
            text = text.replace(value, MASK)
        else:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", MASK, text)
    text = _URL_USER.sub(rf"\g<slash>{MASK}@", text)
    for pattern in (_QUERY_VALUE, _CONNECTION_STRING, _HEADER):
        text = pattern.sub(rf"\g<name>{MASK}", text)
    return text


def _secrets(value: object, *, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _secrets(inner, secret=secret or bool(_SECRET_NAME.search(str(name))))
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _secrets(inner, secret=secret)
    elif secret and isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
        yield b64encode(value).decode()  # the form in headers
    elif secret and isinstance(value, str):
        yield value


def _forms(value: str) -> set[str]:
    """Return the spellings of one secret in texts, URLs and reprs."""
    forms = {value, value.strip(), quote(value), quote(value, safe=""), quote_plus(value)}
    return {form for form in forms | {repr(form)[1:-1] for form in forms} if form}
