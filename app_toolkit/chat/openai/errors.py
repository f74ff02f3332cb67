"""Errors in the format of OpenAI's API, for the routes of one router only."""

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

from app_toolkit.chat.openai.stream import document_response
from app_toolkit.chat.openai.wire import InvalidParameter
from app_toolkit.chat.protocol import INTERRUPTED
from app_toolkit.chat.requests import CheckedRoute
from app_toolkit.errors import ChatError, ReplicaLost, RequestError
from app_toolkit.types import Receive, Scope, Send

logger = logging.getLogger("app_toolkit.chat")

INVALID = "invalid_request_error"
TYPES = {429: "rate_limit_error"}
"""The types of errors that are neither `invalid_request_error` nor `server_error`."""

CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
"""The codes of errors that have none of their own."""

RETRY_AFTER = {429: "1", 503: "1"}
"""`Retry-After` of errors that have none of their own."""

HIDDEN = "the server failed while it processed the request"


class ModelFailed(Exception):
    """A model has yielded an `ErrorEvent`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class OpenAIError:
    """An error as a client receives it."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """The body of the response, or the last event of a stream."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else INVALID)
        code = self.code or CODES.get(self.status)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": code}}

    def response(self) -> Response:
        headers = dict(self.headers)
        if self.status in RETRY_AFTER and not any(name.lower() == "retry-after" for name in headers):
            headers["retry-after"] = RETRY_AFTER[self.status]
        return document_response(self.document, self.status, headers)


def error_of(error: Exception) -> OpenAIError:
    """Return an exception as a client receives it. The text of an unexpected one is logged, and not sent."""
    if isinstance(error, RequestValidationError):
        return _validation(error)
    if isinstance(error, InvalidParameter):
        return OpenAIError(400, error.message, error.code, error.param)
    if isinstance(error, ChatError):
        return OpenAIError(error.status, error.message, error.code, headers=_retry_after(error.retry_after_s))
    if isinstance(error, ModelFailed):
        return OpenAIError(500, error.message, error.code)
    if isinstance(error, HTTPException):
        detail = error.detail if isinstance(error.detail, str) else json.dumps(error.detail, default=str)
        return OpenAIError(error.status_code, detail, headers=error.headers or {})
    if isinstance(error, ReplicaLost):  # its text names a deployment
        logger.warning("a response was interrupted: %s", error)
        return OpenAIError(error.status, INTERRUPTED, error.reason)
    if isinstance(error, RequestError) and error.status != 500:
        return OpenAIError(error.status, str(error), error.reason, headers=_retry_after(error.retry_after_s))
    logger.error("a chat request failed", exc_info=error)
    return OpenAIError(500, HIDDEN)


def _retry_after(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"retry-after": str(math.ceil(seconds))}


def _validation(error: RequestValidationError) -> OpenAIError:
    """Return the mistake that is deepest in the request: the others are those of the other types of a union."""
    found = max(error.errors(), key=lambda each: len(each["loc"]))
    if found["type"] == "json_invalid":
        return OpenAIError(400, f"the body of the request is not valid JSON: {found['ctx']['error']}")
    path = _path(found["loc"][1:])
    if not path:
        return OpenAIError(400, "the body of the request must be a JSON object, with content-type: application/json")
    if found["type"] == "missing":
        return OpenAIError(400, f"the field {path} is missing", "missing_required_parameter", path)
    code = "invalid_type" if found["type"].endswith(("_type", "_parsing")) else "invalid_value"
    return OpenAIError(400, f"the field {path} is wrong: {found['msg']}", code, path)


def _path(location: tuple[Any, ...]) -> str:
    """Return the field as OpenAI writes it, without the names of types that pydantic adds for unions."""
    path = ""
    for each in location:
        if isinstance(each, int):
            path += f"[{each}]"
        elif re.fullmatch(r"[a-z_][\w-]*", each) and each not in {"str", "int", "float", "bool"}:
            path += f".{each}"
    return path.removeprefix(".")


class OpenAIRoute(CheckedRoute):
    """A route whose errors have OpenAI's format, whatever handlers the app has."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                return error_of(error).response()

        return handle

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Its method may be another one than that of the route."""
        try:
            await super().handle(scope, receive, send)
        except HTTPException as error:  # 405, before anything is sent
            await error_of(error).response()(scope, receive, send)


class FallbackRoute(APIRoute):
    """Answers what no route of the app serves, below the prefix of a router.

    No request has its method. So it matches as a route of another method does: only if no route of the app matches in
    full, also no later one.
    """

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
        await OpenAIError(404, message, "not_found").response()(scope, receive, send)


def add_fallback(router: APIRouter) -> None:
    """Add a route, as the last one, that answers unknown paths in OpenAI's format."""
    router.add_api_route(
        "/{path:path}", unknown_path, methods=["*"], include_in_schema=False, route_class_override=FallbackRoute
    )


async def unknown_path() -> None:
    """Stand for the endpoint of `FallbackRoute`, which answers itself."""
