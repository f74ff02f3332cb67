"""Reads the settings of the `CORSMiddleware` of an app."""

import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from app_toolkit.config.models import CorsSettings
from app_toolkit.types import Receive, Scope, Send

logger = logging.getLogger("app_toolkit.cors")

INLINE_FLAGS = {re.ASCII: "a", re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}
"""The flags of a compiled expression that its pattern can have at its start."""


def cors_of(app: object) -> tuple[CorsSettings, ...]:
    """Return the settings of each `CORSMiddleware` around an app, the outermost first.

    A subclass counts, and whatever it overrides does not. The middlewares of mounted apps do not count. A warning says
    which middleware cannot be read, and it does not count either.
    """
    around: list[tuple[type, Callable[[], CORSMiddleware]]] = []
    while isinstance(app, CORSMiddleware):
        around.append((type(app), partial(_itself, app)))
        app = getattr(app, "app", None)
    if isinstance(app, Starlette):
        around += [
            (middleware.cls, partial(cast(Any, middleware.cls), _no_app, *middleware.args, **middleware.kwargs))
            for middleware in app.user_middleware
            if isinstance(middleware.cls, type) and issubclass(middleware.cls, CORSMiddleware)
        ]
    settings = [_settings_of(cls, middleware) for cls, middleware in around]
    return tuple(setting for setting in settings if setting is not None)


def _itself(middleware: CORSMiddleware) -> CORSMiddleware:
    return middleware


def _settings_of(cls: type, constructed: Callable[[], CORSMiddleware]) -> CorsSettings | None:
    try:
        return _read(constructed())
    except Exception as error:  # user code, such as the constructor of a subclass, may raise anything
        logger.warning(
            "app_toolkit cannot read the settings of %s, so its own responses have no CORS fields: %s: %s",
            cls.__name__,
            type(error).__name__,
            error,
        )
        return None


def _read(middleware: CORSMiddleware) -> CorsSettings:
    return CorsSettings(
        allow_origins=_texts(middleware.allow_origins),
        allow_all_origins=middleware.allow_all_origins,
        allow_origin_regex=_pattern(middleware.allow_origin_regex),
        allow_methods=_texts(middleware.allow_methods),
        allow_headers=_texts(middleware.allow_headers),
        allow_all_headers=middleware.allow_all_headers,
        allow_credentials=middleware.allow_credentials,
        allow_private_network=middleware.allow_private_network,
        simple_fields={name.lower(): value for name, value in middleware.simple_headers.items()},
        preflight_fields={name.lower(): value for name, value in middleware.preflight_headers.items()},
    )


def _texts(items: Iterable[object]) -> tuple[str, ...]:
    """Return the texts among the items: the middleware accepts others, such as None, and no request equals them."""
    return tuple(item for item in items if isinstance(item, str))


def _pattern(regex: re.Pattern[str] | None) -> str | None:
    """Return the pattern of an expression, with the flags that it was compiled with."""
    if regex is None:
        return None
    flags = "".join(letter for flag, letter in INLINE_FLAGS.items() if regex.flags & flag)
    return f"(?{flags}){regex.pattern}" if flags else regex.pattern


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    """The app of a middleware that is only constructed for its settings."""
