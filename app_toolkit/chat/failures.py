"""What a client learns of an exception, and the routes that send it in the format of a protocol."""

import json
import logging
import math
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from app_toolkit import ChatError, ReplicaLost, RequestError
from app_toolkit.chat.protocol import INTERRUPTED
from app_toolkit.chat.requests import CheckedRoute

logger = logging.getLogger("app_toolkit.chat")

RETRY_AFTER = {429: "1", 503: "1"}
"""`Retry-After` of failures that have none of their own."""

HIDDEN = "the server failed while it processed the request"


class InvalidParameter(Exception):
    """A request that is valid JSON of the right types, and still has a field that cannot be used."""

    def __init__(self, message: str, param: str, code: str | None = "invalid_value") -> None:
        """`param`: the field, as the protocol writes it, for example `messages[0].content`."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ModelFailed(Exception):
    """A model has yielded an `ErrorEvent`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client learns of an exception."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    """The field of the request that is wrong, as `messages[0].content`."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers, with `Retry-After` if a client may try again."""
        headers = dict(self.headers)
        if self.status in RETRY_AFTER and not any(name.lower() == "retry-after" for name in headers):
            headers["retry-after"] = RETRY_AFTER[self.status]
        return headers


def failure_of(error: Exception) -> Failure:
    """Return what a client learns of an exception. The text of an unexpected one is logged, and not sent."""
    if isinstance(error, RequestValidationError):
        return _validation(error)
    if isinstance(error, InvalidParameter):
        return Failure(400, error.message, error.code, error.param)
    if isinstance(error, ChatError):
        return Failure(error.status, error.message, error.code, headers=_retry_after(error.retry_after_s))
    if isinstance(error, ModelFailed):
        return Failure(500, error.message, error.code)
    if isinstance(error, HTTPException):
        detail = error.detail if isinstance(error.detail, str) else json.dumps(error.detail, default=str)
        return Failure(error.status_code, detail, headers=error.headers or {})
    if isinstance(error, ReplicaLost):  # its text names a deployment
        logger.warning("a response was interrupted: %s", error)
        return Failure(error.status, INTERRUPTED, error.reason)
    if isinstance(error, RequestError) and error.status != 500:
        return Failure(error.status, str(error), error.reason, headers=_retry_after(error.retry_after_s))
    logger.error("a chat request failed", exc_info=error)
    return Failure(500, HIDDEN)


def missing(param: str) -> InvalidParameter:
    """Return the exception for a field that a request lacks."""
    return InvalidParameter(f"the field {param} is missing", param, "missing_required_parameter")


def _retry_after(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"retry-after": str(math.ceil(seconds))}


def _validation(error: RequestValidationError) -> Failure:
    """Return the mistake that is deepest in the request: the others are those of the other types of a union."""
    deepest = max(error.errors(), key=lambda mistake: len(mistake["loc"]))
    if deepest["type"] == "json_invalid":
        return Failure(400, f"the body of the request is not valid JSON: {deepest['ctx']['error']}")
    path = _path(deepest["loc"][1:])
    if not path:
        return Failure(400, "the body of the request must be a JSON object, with content-type: application/json")
    if deepest["type"] == "missing":
        return Failure(400, f"the field {path} is missing", "missing_required_parameter", path)
    code = "invalid_type" if deepest["type"].endswith(("_type", "_parsing")) else "invalid_value"
    return Failure(400, f"the field {path} is wrong: {deepest['msg']}", code, path)


def _path(location: tuple[Any, ...]) -> str:
    """Return the field as OpenAI writes it, without the names of types that pydantic adds for unions."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif re.fullmatch(r"[a-z_][\w-]*", part) and part not in {"str", "int", "float", "bool"}:
            path += f".{part}"
    return path.removeprefix(".")


Respond = Callable[[Failure], Response]
"""Returns a failure as the response of a protocol."""


class FormattedRoute(CheckedRoute):
    """A route whose errors have the format of a protocol, whatever handlers the app has."""

    @staticmethod
    def respond(failure: Failure) -> Response:
        """Return a failure as the response of the protocol."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler, respond = super().get_route_handler(), self.respond

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                return respond(failure_of(error))

        return handle

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Its method may be another one than that of the route."""
        try:
            await super().handle(scope, receive, send)
        except HTTPException as error:  # 405, before anything is sent
            await self.respond(failure_of(error))(scope, receive, send)


class FallbackRoute(APIRoute):
    """Answers what no route of the app serves, below the prefix of a router.

    No request has its method. So it matches as a route of another method does: only if no route of the app matches in
    full, also no later one.
    """

    respond: Respond

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        if match is not Match.NONE:
            path, below = scope["path"], f"/{child['path_params']['path']}"
            # Without a prefix, the paths of the app are not ours. A path that ends with a slash may be redirected.
            if path.endswith("/") or path == scope.get("root_path", "") + below:
                return Match.NONE, {}
        return match, child

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"there is no route for {scope['method']} {scope['path']}"
        await self.respond(Failure(404, message, "not_found"))(scope, receive, send)


def add_fallback(router: APIRouter, respond: Respond) -> None:
    """Add a route, as the last one, that answers unknown paths in the format of a protocol."""
    route_class = type("FallbackRoute", (FallbackRoute,), {"respond": staticmethod(respond)})
    router.add_api_route(
        "/{path:path}", unknown_path, methods=["*"], include_in_schema=False, route_class_override=route_class
    )


async def unknown_path() -> None:
    """Stand for the endpoint of `FallbackRoute`, which answers itself."""
