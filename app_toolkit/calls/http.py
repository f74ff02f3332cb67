"""HTTP for a deployment's object: its `__call__` answers every path and method."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from app_toolkit.contract.methods import STREAMS, is_idempotent, kind_of
from app_toolkit.errors import PlanningError, RequestError
from app_toolkit.observability.context import request_id
from app_toolkit.replica.disconnect import MARK

NOT_FOR_REQUESTS = (
    "@idempotent marks methods that are called; a request is sent again by its HTTP method, or with retry='all'"
)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def serves_http(cls: type) -> bool:
    """Return whether objects of the class answer HTTP with `__call__`. Raises `PlanningError` for an invalid one."""
    method = next((base.__dict__["__call__"] for base in cls.__mro__ if "__call__" in base.__dict__), None)
    if method is not None and kind_of(getattr(method, "__func__", method)) in STREAMS:
        raise PlanningError(f"{cls.__name__}.__call__ yields: let it return a StreamingResponse of what it yields")
    if is_idempotent(method):
        raise PlanningError(f"{cls.__name__}.__call__ answers HTTP: {NOT_FOR_REQUESTS}")
    return method is not None


def http_app(cls: type, respond: Callable[[Request], Awaitable[Any]]) -> FastAPI:
    """Return an app that answers every request with `respond`, whose result may be that of any FastAPI endpoint."""

    async def endpoint(request: Request) -> Any:
        return await respond(request)

    mark = getattr(getattr(cls, "__call__"), MARK, None)  # noqa: B004, B009 - not the metaclass's `__call__`
    if mark is not None:
        setattr(endpoint, MARK, mark)
    app = FastAPI(openapi_url=None, exception_handlers={RequestError: error_response})
    for path in ("", "/{path:path}"):
        app.router.add_api_route(path, endpoint, methods=list(METHODS), response_model=None)
    return app


async def error_response(request: Any, error: Exception) -> Response:
    """Return the response for a call that was refused, from the endpoint that made the call."""
    assert isinstance(error, RequestError)
    headers = {} if error.retry_after_s is None else {"retry-after": str(math.ceil(error.retry_after_s))}
    return JSONResponse(error.document(request_id() or ""), error.status, headers)
