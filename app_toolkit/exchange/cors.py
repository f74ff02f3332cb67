"""The CORS fields of responses of the toolkit itself, as the `CORSMiddleware` of the app would add them.

Without them, a page of another origin can read neither the status of such a response nor its `Retry-After`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from app_toolkit.config.models import CorsSettings
from app_toolkit.types import Header

OWN_FIELDS = "Retry-After", "X-Request-ID"
"""Fields of the toolkit that a page may read, besides those that the app exposes."""

Fields = dict[str, str]


def response_fields(settings: Sequence[CorsSettings], request: Iterable[Header]) -> list[Header]:
    """Return the CORS fields of a response that is not a response to a preflight.

    `settings`: of each `CORSMiddleware`, the outermost first. Empty: the result is empty. `request`: the fields of the
    request, in lower case.
    """
    origin = _values(request).get("origin")
    fields: Fields = {}
    for layer in reversed(settings):
        if origin is not None:
            fields.update(layer.simple_fields)
        if origin is not None and (layer.allow_credentials if layer.allow_all_origins else _is_allowed(layer, origin)):
            fields["access-control-allow-origin"] = origin
        fields["vary"] = ", ".join([*filter(None, [fields.get("vary")]), "Origin"])
    if origin is not None and settings:
        exposed = [name.strip() for name in fields.get("access-control-expose-headers", "").split(",") if name.strip()]
        missing = [name for name in OWN_FIELDS if name.lower() not in map(str.lower, exposed)]
        fields["access-control-expose-headers"] = ", ".join([*exposed, *missing])
    return _encoded(fields)


def preflight_response(
    settings: Sequence[CorsSettings], method: str, request: Iterable[Header]
) -> tuple[int, list[Header], bytes] | None:
    """Return the status, the CORS fields and the text of the response to a preflight. None: the request is none.

    The outermost `CORSMiddleware` responds, as in the app. So a preflight that the app cannot respond to is allowed
    or not as usual, and the page can read the response to the request that follows.
    """
    values = _values(request)
    origin, requested = values.get("origin"), values.get("access-control-request-method")
    if not settings or method != "OPTIONS" or origin is None or requested is None:
        return None
    layer = settings[0]
    fields = dict(layer.preflight_fields)
    failures: list[str] = []
    if not _is_allowed(layer, origin):
        failures.append("origin")
    elif not layer.allow_all_origins or layer.allow_credentials:
        fields["access-control-allow-origin"] = origin
    if requested not in layer.allow_methods:
        failures.append("method")
    names = values.get("access-control-request-headers")
    if names is not None and layer.allow_all_headers:
        fields["access-control-allow-headers"] = names
    elif names is not None and any(name.strip() not in layer.allow_headers for name in names.lower().split(",")):
        failures.append("headers")
    if values.get("access-control-request-private-network") is not None:
        if layer.allow_private_network:
            fields["access-control-allow-private-network"] = "true"
        else:
            failures.append("private-network")
    text = "Disallowed CORS " + ", ".join(failures) if failures else "OK"
    return 400 if failures else 200, _encoded(fields), text.encode()


def _is_allowed(layer: CorsSettings, origin: str) -> bool:
    if layer.allow_all_origins or origin in layer.allow_origins:
        return True
    return layer.allow_origin_regex is not None and re.fullmatch(layer.allow_origin_regex, origin) is not None


def _values(request: Iterable[Header]) -> Mapping[str, str]:
    """Return the first value of each field."""
    values: dict[str, str] = {}
    for name, value in request:
        values.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return values


def _encoded(fields: Fields) -> list[Header]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
