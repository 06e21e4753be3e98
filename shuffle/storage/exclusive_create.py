"""Exclusive create on object stores: which drivers have it, how to ask for it, what replies mean.

Strategy: a table of the protocols whose drivers send a conditional put. Every other protocol is
refused by name, because a create that first looks and then writes lets two writers win. Only
`create_exclusively` interprets a failed create. It settles a lost reply by reading the object back,
which works because the bytes hold their author's random id. It must never report a create as won or
lost without proof.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from types import MethodType
from typing import Any, TypeVar

from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.side_by_side import side_by_side
from durable_shuffle.shuffle.storage.contract import (
    Created,
    Exists,
    Storage,
    TooLongError,
    backend_of,
)
from durable_shuffle.shuffle.storage.errors import Verdict, judge

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Driver:
    """How one fsspec driver creates exclusively."""

    name: str
    """Its distribution on PyPI."""
    extra: str
    """The extra of durable-shuffle that installs it."""
    create_arguments: Mapping[str, object]
    """Arguments that make its `pipe_file` send a conditional put. `check_driver` requires that the
    first name is a parameter."""
    read_arguments: Mapping[str, object]
    """Arguments that make its `cat_file` read a small object in one request."""
    class_name: str
    """Its class. What else is registered with fsspec may ignore the condition: `gcsfs` itself
    registers a class that does so in zonal buckets, and that does not survive a fork."""

    def load_class(self) -> Any:
        """Return the class, whatever fsspec has registered for the protocol.

        Raises:
            ImportError: the distribution is not installed.
        """
        module, _, name = self.class_name.rpartition(".")
        return getattr(import_module(module), name)


_S3 = Driver("s3fs", "s3", {"mode": "create"}, {"max_concurrency": 1}, "s3fs.S3FileSystem")
_GCS = Driver("gcsfs", "gcs", {"mode": "create"}, {}, "gcsfs.core.GCSFileSystem")
_AZURE = Driver("adlfs", "azure", {"overwrite": False}, {}, "adlfs.AzureBlobFileSystem")

DRIVERS: Mapping[str, Driver] = {
    "s3": _S3,  # If-None-Match: *
    "s3a": _S3,
    "gs": _GCS,  # ifGenerationMatch=0
    "gcs": _GCS,
    "az": _AZURE,  # If-None-Match: *
    "abfs": _AZURE,
    "abfss": _AZURE,
}

_REASONS: Mapping[str, str] = {
    "memory": "it keeps bytes in one process, so that every Spark worker would see a store of its "
    "own; for tests in one process use MemoryStorage()",
    "http": "it is read-only",
    "https": "it is read-only",
    "github": "it is read-only",
}


def find_driver(protocol: str) -> Driver:
    """Return the driver that creates exclusively over `protocol`.

    Raises:
        InvalidInputError: durable-shuffle knows no exclusive create for this protocol.
    """
    driver = DRIVERS.get(protocol)
    if driver is None:
        reason = _REASONS.get(protocol, "looking first and writing then lets two writers win")
        raise InvalidInputError(
            f"{protocol}: has no exclusive create that durable-shuffle knows, a way to create only "
            f"what is absent ({reason}); usable are file, hdfs, viewfs, {', '.join(DRIVERS)}, and "
            "what a storage plug-in serves"
        )
    return driver


def check_driver(driver: Driver, filesystem_class: Any) -> None:
    """Refuse a driver that would accept the arguments of a conditional put and ignore them.

    Raises:
        InvalidInputError: the driver is too old.
    """
    pipe_file = getattr(filesystem_class, "_pipe_file", filesystem_class.pipe_file)
    needed = next(iter(driver.create_arguments))
    if needed not in inspect.signature(pipe_file).parameters:
        raise InvalidInputError(
            f"{driver.name} is too old to create exclusively (pipe_file has no {needed!r}); "
            f"pip install --upgrade 'durable-shuffle[{driver.extra}]'"
        )


def without_retries(driver: Driver, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options with the driver's own retries switched off, where an option can do that.

    `prepare_filesystem` switches off the rest.

    Raises:
        TypeError: `config_kwargs` is no mapping; the driver would refuse it too.
    """
    options = dict(options)
    if driver is _S3:
        config = options.get("config_kwargs") or {}
        if not isinstance(config, Mapping):
            raise TypeError("storage option config_kwargs must be a mapping")
        retries = {"total_max_attempts": 1, "mode": "standard"}
        options["config_kwargs"] = {**config, "retries": retries}
    elif driver is _GCS:  # its look-up of the bucket's type; `prepare_filesystem` does the rest
        options.setdefault("retry_timeout", 0)
    return options


def prepare_filesystem(driver: Driver, filesystem: Any) -> None:
    """Switch off the remaining retries of a new filesystem; check that it can create exclusively.

    Raises:
        InvalidInputError: botocore does not know the conditional put, so that s3fs would silently
            send a plain one; or this version of the driver hides its retries somewhere else.
    """
    if driver is _S3:
        filesystem.retries = 1
        model = filesystem.s3.meta.service_model
        for request in ("PutObject", "CompleteMultipartUpload"):
            if "IfNoneMatch" not in model.operation_model(request).input_shape.members:
                raise InvalidInputError(
                    f"botocore is too old to create exclusively ({request} has no IfNoneMatch); "
                    "pip install --upgrade 'durable-shuffle[s3]'"
                )
        return
    try:
        if driver is _GCS:
            _request_once(filesystem)
        else:  # all clients made from this one share its policy
            filesystem.service_client._config.retry_policy.total_retries = 0  # noqa: SLF001
    except AttributeError as error:
        raise InvalidInputError(
            f"{driver.name}: its own retries cannot be switched off ({error}), and they would "
            f"multiply with ours; install another version of {driver.name}"
        ) from error


_gcs_answer: ContextVar[dict[str, Any]] = ContextVar("durable_shuffle_gcs_answer")
"""Where the trace stores the headers for its request."""


def _request_once(filesystem: Any) -> None:
    """Make a new gcsfs send each request once, and keep the answer's headers in its errors.

    A decorator in gcsfs repeats each request and drops the headers of a refusal, also the time to
    wait. So the function below the decorator is called. gcsfs's HTTP client shows each answer to
    a trace, which runs in the request's own task and keeps the headers.

    Raises:
        AttributeError: this version of gcsfs is built differently.
    """
    import aiohttp  # an optional dependency: gcsfs's own

    request = type(filesystem)._request.__wrapped__  # noqa: SLF001

    async def once(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer: dict[str, Any] = {}
        token = _gcs_answer.set(answer)
        try:
            return await request(self, *args, **kwargs)
        except Exception as error:
            if answer and not hasattr(error, "headers"):
                error.headers = answer["headers"]  # type: ignore[attr-defined]
            raise
        finally:
            _gcs_answer.reset(token)

    async def keep_headers(session: Any, context: Any, params: Any) -> None:
        del session, context
        if (answer := _gcs_answer.get(None)) is not None:
            answer["headers"] = params.response.headers

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(keep_headers)
    known = filesystem.session_kwargs
    traces = [*known.get("trace_configs", ()), trace]
    filesystem.session_kwargs = {**known, "trace_configs": traces}
    filesystem._request = MethodType(once, filesystem)  # noqa: SLF001


def prove_create(storage: Storage, key: str, then: Callable[[], T]) -> T:
    """Create an object twice, require that the second create is refused, and go on.

    A service may accept the condition of a create and ignore it. Folders and memory create by code
    of this library, which needs no proof.

    Args:
        key: of nobody else. The object is deleted beside `then`.

    Returns:
        What `then` returns.

    Raises:
        InvalidInputError: the second create was not refused; `then` was not called.
    """
    if getattr(backend_of(storage), "own_create", False):
        return then()
    first, second = b"first " + key.encode(), b"second " + key.encode()

    def forget() -> None:
        with suppress(DurableShuffleError):  # gc deletes what is left
            storage.delete([key])

    try:
        storage.put_if_absent(key, first)
        proven = storage.put_if_absent(key, second) == Exists(first)
    except BaseException:
        forget()
        raise
    if not proven:
        forget()
        raise InvalidInputError(
            f"{storage.description}: the service accepts a create that must not replace an object, "
            "and replaces it: two drivers would both win the job; use a version or another service "
            "that obeys conditional creates (If-None-Match: *), see `durable-shuffle storage-check`"
        )
    return side_by_side(forget, then)[1]


def create_exclusively(
    create: Callable[[], object],
    read_back: Callable[[], bytes],
    translate: Callable[[Exception], DurableShuffleError],
    data: bytes,
) -> Created | Exists:
    """Send the create once and find out whether it won.

    Args:
        create: sends the conditional put of `data`; raises what the driver raises.
        read_back: returns the whole object; raises our errors only.
        translate: makes our error from a driver's error.
        data: holds its author's random id, so that equal bytes are the same write.

    Raises:
        OutcomeUnknownError: the reply was lost and the object does not exist, but may still appear;
            or an object exists that cannot be read back and may be this write.
        TooLongError: the existing object is longer than any that is ever created here: damage.
        UnavailableError: the server refused the request, for example because another create was in
            flight; or the object that blocked the create has been deleted since.
        DurableShuffleError: any other refusal, as `translate` makes it.
    """
    try:
        create()
    except Exception as error:  # noqa: BLE001 - judged by the table, raised as ours
        failure = error
    else:
        return Created()
    verdict = judge(failure)
    if verdict is Verdict.LOST:
        return _settle(translate(failure), read_back, data)
    if verdict is not Verdict.EXISTS:
        raise translate(failure)
    try:
        existing = read_back()
    except NotFoundError as gone:
        raise UnavailableError(f"{gone}; it stood in the way of a create before") from gone
    except TooLongError:
        raise  # durable-shuffle writes no object that long
    except DurableShuffleError as error:
        raise _unknown(f"{translate(failure)}; and reading back failed", error) from error
    # Equal bytes: the refused request met its own first try. aiohttp silently repeats a request
    # when a connection that it reused breaks.
    return Created() if existing == data else Exists(existing)


def _settle(
    lost: DurableShuffleError, read_back: Callable[[], bytes], data: bytes
) -> Created | Exists:
    """Decide a create whose reply was lost by reading the object back."""
    try:
        existing = read_back()
    except NotFoundError:
        raise lost from lost.__cause__
    except DurableShuffleError as error:
        raise _unknown(f"{lost}; and reading back failed", error) from error
    return Created() if existing == data else Exists(existing)


def _unknown(text: str, error: DurableShuffleError) -> OutcomeUnknownError:
    """Return the error for a failed read-back, with the pause that the storage asked for."""
    unknown = OutcomeUnknownError(f"{text}: {error}")
    unknown.retry_after_seconds = getattr(error, "retry_after_seconds", None)
    return unknown
