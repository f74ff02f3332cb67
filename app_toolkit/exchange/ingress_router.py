"""The router of an ingress, as the proxy uses it."""

from typing import Protocol

from app_toolkit.exchange.dispatcher import Router
from app_toolkit.exchange.preference import Outcome, Preference
from app_toolkit.exchange.registry import PublishedRouter
from app_toolkit.interfaces import Endpoint


class RoutePermit(Protocol):
    """The right to run one request at one replica."""

    @property
    def endpoint(self) -> Endpoint: ...

    affinity: Outcome | None
    kept: bool
    request: str

    def redeem(self) -> bool: ...


class IngressRouter(PublishedRouter, Router, Protocol):
    """The router interface that the proxy uses: that of the registry, and that of the dispatcher."""

    def has_session(self, preference: Preference | None) -> bool: ...
