"""One request of gcsfs: never repeated, and its error keeps the headers of the answer.

gcsfs tries each request again by a decorator with a fixed number, and drops the headers of a
refusal, the time to wait among them. What the decorator wraps is the one request. Its HTTP client
shows each answer to a trace, which runs in the request's own task.
"""

from contextvars import ContextVar
from types import MethodType
from typing import Any

_answer: ContextVar[dict[str, Any]] = ContextVar("durable_shuffle_gcs_answer")
"""Where the trace leaves the headers for the request that it belongs to."""


def request_once(filesystem: Any) -> None:
    """Have a new filesystem send each request once and raise errors with `headers`.

    Raises:
        AttributeError: it is not built as this expects.
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
