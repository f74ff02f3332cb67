"""The responses of the proxy itself: errors, `/-/healthz`, `/-/readyz` and `/-/routes`."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from app_toolkit.config.models import CorsSettings
from app_toolkit.contract.routes import RouteLookup
from app_toolkit.errors import RequestError
from app_toolkit.exchange.cors import preflight_response
from app_toolkit.exchange.registry import Registry
from app_toolkit.exchange.request import ClientRequest
from app_toolkit.exchange.session_pins import from_query
from app_toolkit.types import Header

HEALTH = "/-/healthz"
READY = "/-/readyz"
ROUTES = "/-/routes"


@dataclass(frozen=True, slots=True)
class BuiltinResponse:
    """A complete response, except for its framing and the default fields. The downstream adds these."""

    status: int
    body: bytes
    fields: tuple[Header, ...] = ((b"content-type", b"application/json"),)

    @property
    def status_line(self) -> bytes:
        return b"HTTP/1.1 %d %b" % (self.status, HTTPStatus(self.status).phrase.encode())

    @property
    def lines(self) -> bytes:
        """The fields as lines of a head."""
        return b"".join(b"%b: %b\r\n" % field for field in self.fields)


def failure(error: RequestError, request_id: str, more_fields: Iterable[Header] = ()) -> BuiltinResponse:
    """Return the response for an error: its reason, one sentence of detail, and the request id for the log."""
    response = _json(error.status, error.document(request_id))
    fields = [*more_fields]
    if error.retry_after_s is not None:
        fields.insert(0, (b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    return BuiltinResponse(response.status, response.body, (*response.fields, *fields))


def preflight(settings: Sequence[CorsSettings], request: ClientRequest) -> BuiltinResponse | None:
    """Return the response to a CORS preflight that no replica has answered. None: the request is no preflight."""
    response = preflight_response(settings, request.method.decode(), request.fields)
    if response is None:
        return None
    status, fields, body = response
    return BuiltinResponse(status, body, ((b"content-type", b"text/plain; charset=utf-8"), *fields))


def endpoint(request: ClientRequest, registry: Registry[Any], draining: bool) -> BuiltinResponse | None:
    """Return the response of one of the proxy's own endpoints. None: the request is for an application."""
    path = request.path
    if request.method not in (b"GET", b"HEAD"):
        return None
    if path == HEALTH:
        return health(registry, draining)
    if path == READY:
        return readiness(registry, draining, from_query(request.query, "application"))
    return _json(200, listing(registry.routes)) if path == ROUTES else None


def health(registry: Registry[Any], draining: bool) -> BuiltinResponse:
    """Return 200 if the proxy serves requests. The body has the word that the probes of KubeRay look for."""
    if draining:
        return _json(503, {"status": "draining"})
    return _json(200, {"status": "success"}) if registry.ready else _json(503, {"status": "no routes yet"})


def readiness(registry: Registry[Any], draining: bool, application: str | None) -> BuiltinResponse:
    """Return 200 if each ingress that gets requests can serve one, else 503 with a sentence for each that cannot.

    `application`: only the ingresses of this one. None: all.
    """
    reasons = ["the proxy is draining"] if draining else registry.unavailable(application)
    return _json(503, {"status": "not ready", "reasons": reasons}) if reasons else _json(200, {"status": "success"})


def listing(routes: RouteLookup) -> dict[str, Any]:
    """Return, by prefix, each application, its default ingress, and the ingress of each route of its main revision."""
    return {
        application.prefix: {
            "application": application.target.replica_set.application,
            "default": application.target.replica_set.deployment,
            "routes": [
                {
                    "kind": route.kind,
                    "path": route.path,
                    "methods": route.methods,
                    "ingress": route.owner,
                }
                for route in application.routes
                if route.owner is not None
            ],
        }
        for application in routes.applications
        if application.is_main
    }


def _json(status: int, content: Any) -> BuiltinResponse:
    return BuiltinResponse(status, json.dumps(content, separators=(",", ":")).encode())
