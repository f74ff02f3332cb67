"""What all exchanges of one event loop share: the routes, the routers, the upstreams, and the filters."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from app_toolkit.config.models import CorsSettings
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.exchange.builtin import BuiltinResponse
from app_toolkit.exchange.filters import Filters
from app_toolkit.exchange.ingress_router import IngressRouter
from app_toolkit.exchange.ingress_state import IngressState
from app_toolkit.exchange.request import ClientRequest
from app_toolkit.exchange.upstream import Upstreams
from app_toolkit.observability.records import Record, Records

if TYPE_CHECKING:
    from app_toolkit.exchange.exchange import Exchange


class ExchangePlane(Protocol):
    """The state that the exchanges of one proxy, or of one event loop without a proxy, share."""

    clock: Callable[[], float]
    """The current time in seconds."""

    unowned: IngressState
    """The requests that no ingress owns."""

    filters: Filters

    records: Records[Record]
    """Gets the record of each exchange that has ended."""

    @property
    def upstreams(self) -> Upstreams: ...

    def mint_id(self) -> bytes:
        """Return a new request ID."""

    def own_response(self, request: ClientRequest) -> BuiltinResponse | None:
        """Return the response to a request for one of the toolkit's own endpoints. None: an application serves it."""

    def find(self, exchange: "Exchange") -> tuple[ReplicaSetKey, str]:
        """Return the replica set of the ingress that serves a request, and the path template of its route.

        Raises `RequestError` if none serves it.
        """

    def router(self, ingress: ReplicaSetKey) -> IngressRouter | None:
        """Return the router of an ingress. None: the ingress was removed."""

    def ingress_state(self, ingress: ReplicaSetKey) -> IngressState: ...

    def cors(self, ingress: ReplicaSetKey, path: str) -> Sequence[CorsSettings]:
        """Return the settings with which responses of the toolkit itself may be read by pages of other origins."""
