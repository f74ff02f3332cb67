"""Reads the settings of the `CORSMiddleware` of an app."""

from typing import Any, cast

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from app_toolkit.config.models import CorsSettings
from app_toolkit.types import Receive, Scope, Send


def cors_of(app: object) -> tuple[CorsSettings, ...]:
    """Return the settings of each `CORSMiddleware` around an app, the outermost first.

    A subclass counts, and whatever it overrides does not. The middlewares of mounted apps do not count.
    """
    around: list[CORSMiddleware] = []
    while isinstance(app, CORSMiddleware):
        around.append(app)
        app = app.app
    if isinstance(app, Starlette):
        around += [
            cast(Any, each.cls)(_no_app, *each.args, **each.kwargs)
            for each in app.user_middleware
            if isinstance(each.cls, type) and issubclass(each.cls, CORSMiddleware)
        ]
    return tuple(map(_settings_of, around))


def _settings_of(middleware: CORSMiddleware) -> CorsSettings:
    regex = middleware.allow_origin_regex
    return CorsSettings(
        allow_origins=tuple(middleware.allow_origins),
        allow_all_origins=middleware.allow_all_origins,
        allow_origin_regex=None if regex is None else regex.pattern,
        allow_methods=tuple(middleware.allow_methods),
        allow_headers=tuple(middleware.allow_headers),
        allow_all_headers=middleware.allow_all_headers,
        allow_credentials=middleware.allow_credentials,
        allow_private_network=middleware.allow_private_network,
        simple_fields={name.lower(): value for name, value in middleware.simple_headers.items()},
        preflight_fields={name.lower(): value for name, value in middleware.preflight_headers.items()},
    )


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    """The app of a middleware that is only constructed for its settings."""
