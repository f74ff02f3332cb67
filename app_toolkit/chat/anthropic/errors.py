"""Errors in the format of Anthropic's API, for the routes of one router only."""

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from fastapi import Response
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from app_toolkit import request_id
from app_toolkit.chat.allowances import Allowances, anthropic_fields
from app_toolkit.chat.failures import Failure, FormattedRoute
from app_toolkit.chat.live_response import document_response

OVERLOADED = 529
"""The status of Anthropic's API for a server that cannot serve the request now. Other APIs have 503 for this."""

TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
"""The types of errors that are neither `invalid_request_error` nor `api_error`."""

REQUEST_ID = "request-id"
"""The header that the SDKs read. It has the same ID as `X-Request-ID`."""


def response_id() -> str:
    """Return the ID of the current request; without a toolkit, a new one."""
    return request_id() or f"req_{uuid.uuid4().hex}"


def status_of(failure: Failure) -> int:
    """Return the status that a client receives."""
    return OVERLOADED if failure.status == 503 else failure.status


def error_document(failure: Failure, id: str) -> dict[str, Any]:
    """Return the body of the response, or the last event of a stream.

    Parameters:
        failure: The failure.
        id: The ID of the request.
    """
    status = status_of(failure)
    message = failure.message
    if failure.param and failure.param not in message:
        message = f"{failure.param}: {message}"
    error: dict[str, Any] = {
        "type": TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error"),
        "message": message,
    }
    if failure.code:
        error["details"] = {"error_code": failure.code}
    return {"type": "error", "error": error, "request_id": id}


def error_response(failure: Failure, id: str | None = None) -> Response:
    """Return a failure as a response. `id`: the ID of the request. Default: the current one."""
    id = id or response_id()
    return document_response(error_document(failure, id), status_of(failure), {**failure.all_headers, REQUEST_ID: id})


class AnthropicRoute(FormattedRoute):
    """A route whose errors have Anthropic's format."""

    @staticmethod
    def allowance_fields(allowances: Allowances, now: datetime) -> Iterator[tuple[str, str]]:
        return anthropic_fields(allowances, now)

    @staticmethod
    def respond(failure: Failure) -> Response:
        return error_response(failure)


class SharedPathRoute(AnthropicRoute):
    """A route below `/models` or `/files`, paths that OpenAI's API also has.

    A request without the header `anthropic-version` is left to a route for it, if the app has one.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        if match is Match.FULL and "anthropic-version" not in Headers(scope=scope):
            match = Match.PARTIAL
        return match, child
