"""What user code may ask about the request that it serves."""

from contextvars import ContextVar

REQUEST_ID: ContextVar[str | None] = ContextVar("app_toolkit_request_id", default=None)


def request_id() -> str | None:
    """The id of the request that is being served: the one its client reads in `X-Request-ID`.

    None outside a request, and where a request came without one. Tasks and threads that a handler starts
    through asyncio or AnyIO see the id of the request that started them.
    """
    return REQUEST_ID.get()
