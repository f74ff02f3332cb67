"""Errors in the format of OpenAI's API, for the routes of one router only."""

from typing import Any

from fastapi import Response
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from app_toolkit.chat.failures import Failure, FormattedRoute
from app_toolkit.chat.live_response import document_response

INVALID = "invalid_request_error"
TYPES = {429: "rate_limit_error"}
"""The types of errors that are neither `invalid_request_error` nor `server_error`."""

CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
"""The codes of errors that have none of their own."""


def error_document(failure: Failure) -> dict[str, Any]:
    """Return the body of the response, or the last event of a stream."""
    kind = TYPES.get(failure.status, "server_error" if failure.status >= 500 else INVALID)
    code = failure.code or CODES.get(failure.status)
    return {"error": {"message": failure.message, "type": kind, "param": failure.param, "code": code}}


def error_response(failure: Failure) -> Response:
    """Return a failure as a response."""
    return document_response(error_document(failure), failure.status, failure.all_headers)


class OpenAIRoute(FormattedRoute):
    """A route whose errors have OpenAI's format.

    Anthropic's API also has the paths `/models` and `/files`. A request with the header `anthropic-version` is left to
    a route for it, if the app has one.
    """

    @staticmethod
    def respond(failure: Failure) -> Response:
        return error_response(failure)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        if match is Match.FULL and "anthropic-version" in Headers(scope=scope):
            match = Match.PARTIAL
        return match, child
