"""What the chat routers check of a request before they read its body: its origin, its media type and its size.

A browser sends the cookies of a user with requests of any page, also of a foreign one. A foreign page can send a body
of the type `text/plain` without a preflight request, but not one of the type `application/json`.
"""

import email.message
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from app_toolkit import ConfigError
from app_toolkit.chat.allowances import ALLOWANCES, Allowances, openai_fields

MAX_BODY_SIZE = 16 * 2**20
"""The default limit of a body in bytes."""

PORTS = {"http": 80, "https": 443}

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#*@\sA-Z]+")
"""An origin as browsers send it: without a path, and in lower case."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def checked_origins(router: str, origins: Sequence[str]) -> tuple[str, ...]:
    """Return the origins that a router allows. Raises `ConfigError` for one that no browser sends.

    `router`: the name of the router, for the error.
    """
    if isinstance(origins, str):
        raise ConfigError(f"{router}: origins is the string {origins!r}: pass a list of origins")
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise ConfigError(f"{router}: origins has {origin!r}: write it as https://HOST or https://HOST:PORT")
    return tuple(origins)


def origin_is_allowed(origin: str | None, host: str | None, allowed: Iterable[str]) -> bool:
    """Return whether a page may send a request with cookies, or open a WebSocket.

    Parameters:
        origin: The header `Origin`. None: the client is no browser.
        host: The header `Host`. A page of the same host and port is allowed. The scheme is not compared, because a
            proxy may have ended TLS.
        allowed: Other origins, such as `https://chat.example.com`. `*` is any.
    """
    allowed = tuple(allowed)
    if origin is None or "*" in allowed or origin in allowed:
        return True
    try:
        page, server = urlsplit(origin), urlsplit(f"//{host}")
        default = PORTS.get(page.scheme)
        ports = page.port or default, server.port or default
    except ValueError:
        return False
    return (
        default is not None and page.hostname is not None and page.hostname == server.hostname and ports[0] == ports[1]
    )


def media_type_of(content_type: str | None) -> str:
    """Return the media type of a body with this `Content-Type`, in lower case."""
    message = email.message.Message()
    message["content-type"] = content_type or "text/plain"
    return message.get_content_type()


def is_json(content_type: str | None) -> bool:
    """Return whether a body with this `Content-Type` is JSON: `application/json`, or a type that ends with `+json`."""
    kind = media_type_of(content_type)
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """What one router checks."""

    origins: tuple[str, ...] = ()
    """The origins whose pages may change something with cookies, in addition to those of the same host and port."""
    max_body_size: int = MAX_BODY_SIZE
    """The maximum number of bytes of a body."""
    body: Literal["JSON", "form"] = "JSON"
    """What a body must be: a JSON document, or a form with files, `multipart/form-data`."""

    @classmethod
    def of(cls, router: str, origins: Sequence[str], max_body_size: int = MAX_BODY_SIZE) -> "RequestChecks":
        """Return the checks of a router. Raises `ConfigError` if an option is out of bounds."""
        if not 1 <= max_body_size <= 2**30:
            raise ConfigError(f"{router}: max_body_size = {max_body_size!r}: must be from 1 to {2**30:,}")
        return cls(checked_origins(router, origins), max_body_size)

    def check(self, method: str, headers: Headers) -> None:
        """Raise `HTTPException` if the request is refused for its head.

        The status is 403 for its origin, 413 for its size, and 415 for a body that is no form, but must be one.
        """
        origin = headers.get("origin")
        if (
            method not in SAFE_METHODS
            and "cookie" in headers
            and not origin_is_allowed(origin, headers.get("host"), self.origins)
        ):
            raise HTTPException(403, f"pages of {origin} may not send requests with cookies: add it to origins")
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit():
            self._check_size(int(length))
        if self.body == "form" and media_type_of(headers.get("content-type")) != "multipart/form-data":
            raise HTTPException(415, "the body must be a form, with content-type: multipart/form-data")

    def limited(self, receive: Receive, headers: Headers) -> Receive:
        """Return a function that receives the body and raises `HTTPException`: 413, too long; 415, no JSON."""
        size = 0

        async def limited() -> Any:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request" and (chunk := message.get("body", b"")):
                if not size and self.body == "JSON" and not is_json(headers.get("content-type")):
                    raise HTTPException(415, "the body must be JSON, with content-type: application/json")
                size += len(chunk)
                self._check_size(size)
            return message

        return limited

    def _check_size(self, size: int) -> None:
        if size > self.max_body_size:
            raise HTTPException(413, f"the body has more than {self.max_body_size:,} bytes, the limit of this router")


class CheckedRoute(APIRoute):
    """A route that checks each request before its body is read, and whose responses say what its API key may use."""

    checks: ClassVar[RequestChecks] = RequestChecks()

    @staticmethod
    def allowance_fields(allowances: Allowances, now: datetime) -> Iterator[tuple[str, str]]:
        """Yield the fields that say what the API key may still use. `now`: the present time in UTC."""
        return openai_fields(allowances, now)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def send_with_fields(message: Message) -> None:
            allowances: Allowances | None = scope.get(ALLOWANCES)
            if allowances is not None and message["type"] == "http.response.start":
                fields = [
                    (name.encode(), value.encode())
                    for name, value in self.allowance_fields(allowances, datetime.now(UTC))
                ]
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await send(message)

        await super().handle(scope, receive, send_with_fields)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler, checks = super().get_route_handler(), self.checks

        async def handle(request: Request) -> Response:
            checks.check(request.method, request.headers)
            return await handler(Request(request.scope, checks.limited(request.receive, request.headers)))

        return handle


R = TypeVar("R", bound=CheckedRoute)


def checked(route_class: type[R], checks: RequestChecks) -> type[R]:
    """Return a class of routes with these checks, for one router."""
    return type(route_class.__name__, (route_class,), {"checks": checks})
