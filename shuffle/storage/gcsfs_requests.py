"""Make gcsfs send each request once and keep the headers of the answer in its errors.

A decorator in gcsfs repeats each request a fixed number of times, and gcsfs drops the headers of a
refusal, including the time to wait. This module calls the function below the decorator, which sends
one request. gcsfs's HTTP client shows each answer to a trace, which runs in the request's own task
and keeps the headers.
"""

from contextvars import ContextVar
from types import MethodType
from typing import Any

_answer: ContextVar[dict[str, Any]] = ContextVar("durable_shuffle_gcs_answer")
"""Where the trace stores the headers for its request."""


def request_once(filesystem: Any) -> None:
    """Change a new filesystem: it sends each request once, and its errors have `headers`.

    Raises:
        AttributeError: this version of gcsfs is built differently.
    """
    import aiohttp  # an optional dependency: gcsfs's own

    request = type(filesystem)._request.__wrapped__  # noqa: SLF001

    async def once(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer: dict[str, Any] = {}
        token = _answer.set(answer)
        try:
            return await request(self, *args, **kwargs)
        except Exception as error:
            if answer and not hasattr(error, "headers"):
                error.headers = answer["headers"]  # type: ignore[attr-defined]
            raise
        finally:
            _answer.reset(token)

    async def keep_headers(session: Any, context: Any, params: Any) -> None:
        del session, context
        if (answer := _answer.get(None)) is not None:
            answer["headers"] = params.response.headers

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(keep_headers)
    known = filesystem.session_kwargs
    traces = [*known.get("trace_configs", ()), trace]
    filesystem.session_kwargs = {**known, "trace_configs": traces}
    filesystem._request = MethodType(once, filesystem)  # noqa: SLF001
