"""Who may use the admin server: the token, which addresses need one, and which requests are refused.

Design: docs/design/security.md
"""

import asyncio
import hmac
import logging
import math
import os
import re
import string
import sys
import time
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app_toolkit.config import settings
from app_toolkit.errors import ConfigError

logger = logging.getLogger("app_toolkit.admin")

MIN_TOKEN = 16
"""The least number of characters of a token."""

BODY = "application/json"
"""The type of bodies. A page of another origin cannot send them without a permission that no response gives (CORS)."""

LONGEST_BODY = 256 * 1024 * 1024
"""Bytes of a body. The body of a deployment contains the files of the application."""

LOG_EVERY_S = 10.0
"""Seconds between two records about requests without the token."""

ESTABLISHED = "01"
"""The state of an open connection in /proc/net/tcp. In other states, the table has no owner."""

PROTECTION = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
"""Header fields of each response: pages load nothing from other hosts, run no inline code, and appear in no frame."""

_ALLOWED = frozenset(string.ascii_letters + string.digits + "-._~+/=")
"""The characters that RFC 6750 allows in a bearer token."""


def read_token() -> str | None:
    """Return the token of the admin API from the environment; None: there is none.

    Raises `ConfigError`, whose message does not show the token, if it is too short or no bearer token.
    """
    token = settings.admin_token()
    if token is None:
        return None
    if len(token) < MIN_TOKEN:
        raise ConfigError(
            f"{settings.ADMIN_TOKEN} has {len(token)} characters: it needs at least {MIN_TOKEN}, for example from "
            "`openssl rand -hex 32`"
        )
    if not _ALLOWED.issuperset(token):
        raise ConfigError(f"{settings.ADMIN_TOKEN} may only have letters, digits and - . _ ~ + / =")
    return token


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on this host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_exposure(host: str) -> None:
    """Raise `ConfigError` if other machines would reach the admin server on this host without a token."""
    if read_token() is None and not is_loopback(host):
        raise ConfigError(
            f"admin_host = {host!r}: other machines can reach the admin server there, so it needs a token in "
            f"{settings.ADMIN_TOKEN}"
        )


class Guard:
    """ASGI middleware that refuses requests of others, and adds the header fields that protect pages.

    * With a token, everything but the files of the page needs it, in `Authorization: Bearer`.
    * Without one, only this user's own processes and those of root are served, as far as the system tells (Linux).
    * Requests that a page of another origin has caused are refused: by `Origin`, by `Sec-Fetch-Site`, and without a
      token also by `Host`, which is another one if the attacker's name resolves to this machine (DNS rebinding).
    * Requests that change something must have a body of a type that no form of another page can send.
    """

    def __init__(self, app: ASGIApp, host: str, token: str | None, public: Collection[str]) -> None:
        """`host`: the address that the server listens on. `token`: what clients must present; None: nothing.

        `public`: the paths that need no token.
        """
        self._app = app
        self._public = frozenset(public)
        self._token = None if token is None else token.encode()
        # With a token, a page under another name can do nothing, and a reverse proxy may pass on its own name.
        self._host = host.strip("[]").lower() if token is None and is_loopback(host) else None
        self._failures = 0
        self._logged_at = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"a connection of the type {scope['type']!r} is not served")
        refusal = self._refusal(scope) or await self._stranger(scope)
        if refusal is None:
            await self._app(scope, self._bounded(receive), self._protected(send))
            return
        status, why = refusal
        headers = {"www-authenticate": "Bearer"} if status == 401 else None
        await JSONResponse({"detail": why, "error": "Refused", "notes": []}, status, headers)(
            scope, receive, self._protected(send)
        )

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason with which a request is refused; None: it is not."""
        fields = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        is_private = path not in self._public
        host = fields.get("host", "")
        if self._host is not None and not self._is_own(host):
            return 403, f"this server has the name localhost, and not {host[:100]!r}"
        origin = fields.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return 403, f"requests of the origin {origin[:100]!r} are not allowed"
        site = fields.get("sec-fetch-site", "none")
        is_link = method == "GET" and not is_private and fields.get("sec-fetch-mode") == "navigate"
        if site not in ("none", "same-origin") and not is_link:
            return 403, "requests of other sites are not allowed"
        if is_private and self._token is not None and not self._has_token(fields.getlist("authorization")):
            self._log_failure(scope)
            return 401, "this needs the token of the admin API in the header field Authorization"
        if method not in ("GET", "HEAD"):
            kind = fields.get("content-type", "").partition(";")[0].strip().lower()
            if kind != BODY:
                return 415, f"the body must have the type {BODY}, and not {kind[:100]!r}"
            length = fields.get("content-length", "0")
            if length.isdecimal() and int(length) > LONGEST_BODY:
                return 413, f"the body has more than {LONGEST_BODY:,} bytes"
        return None

    def _is_own(self, host: str) -> bool:
        name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
        return is_loopback(name) or name.strip("[]").lower() == self._host

    def _has_token(self, headers: Sequence[str]) -> bool:
        if len(headers) != 1 or self._token is None:
            return False
        scheme, _, value = headers[0].partition(" ")
        return hmac.compare_digest(value.strip().encode(), self._token) and scheme.lower() == "bearer"

    def _log_failure(self, scope: Scope) -> None:
        self._failures += 1
        if time.monotonic() - self._logged_at < LOG_EVERY_S:
            return
        client = scope.get("client") or ("?", 0)
        path = scope["path"][:200]
        logger.warning("%d requests without the token, the last of %s for %r", self._failures, client[0], path)
        self._failures, self._logged_at = 0, time.monotonic()

    async def _stranger(self, scope: Scope) -> tuple[int, str] | None:
        """Return a refusal if there is no token, and the client belongs to another user of this machine."""
        client, server = scope.get("client"), scope.get("server")
        if self._token is not None or client is None or server is None:
            return None
        owners = await asyncio.to_thread(connection_owners, client, server)
        if owners is None or owners & {0, os.geteuid()}:
            return None
        return 403, (
            f"without a token, only processes of the user {os.geteuid()} on this machine may use this server: set "
            f"{settings.ADMIN_TOKEN}"
        )

    def _bounded(self, receive: Receive) -> Receive:
        """Count the bytes of a body without a length."""
        size = 0

        async def receive_bounded() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LONGEST_BODY:
                return {"type": "http.disconnect"}
            return message

        return receive_bounded

    @staticmethod
    def _protected(send: Send) -> Send:
        async def send_protected(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *PROTECTION]}
            await send(message)

        return send_protected


def connection_owners(client: tuple[str, int], server: tuple[str, int]) -> set[int] | None:
    """Return the users that own the client's side of a TCP connection within this machine.

    Empty: the connection has ended, or its client is on another machine. None: the system does not tell.
    """
    sides = f"{_in_proc(*client)} {_in_proc(*server)} {ESTABLISHED} "
    try:
        table = Path("/proc/net/tcp6" if ":" in client[0] else "/proc/net/tcp").read_text("ascii")
    except OSError:
        return None
    lines = (line.partition(": ")[2].strip() for line in table.splitlines())
    return {int(line.split()[6]) for line in lines if line.startswith(sides)}


def _in_proc(host: str, port: int) -> str:
    """Return an address as /proc/net/tcp has it: each group of four bytes in the order of this machine."""
    packed = ip_address(host.partition("%")[0]).packed
    groups = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{group:08X}' for group in groups)}:{port:04X}"
