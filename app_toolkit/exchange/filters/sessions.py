"""The filter for session affinity: reads the affinity key of a request, and pins the session that a response begins."""

from functools import lru_cache

from app_toolkit.config.affinity import KeySource, key_sources
from app_toolkit.contract.identity import ReplicaSetKey, dotted
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.preference import Preference
from app_toolkit.exchange.request import ClientRequest, value_at
from app_toolkit.exchange.session_pins import Pins
from app_toolkit.exchange.upstream import Terms
from app_toolkit.types import Header, ReplicaId
from app_toolkit.wire.pool import ResponseHead

COOKIE = "app-toolkit-session-"
"""The beginning of the name of the proxy's own cookie. The name of the ingress follows, with a dot for its slash."""

NOTHING = "-"
"""The ID in the proxy's own cookie, which only has a pin."""


class SessionAffinity:
    """Sends the requests of a session to one replica, if their ingress has the option `affinity`.

    `secret`: signs the pins. All proxies of an instance have the same one.
    """

    option = "affinity"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def place(self, exchange: Exchange, ingress: ReplicaSetKey) -> None:
        """Read the affinity key of the request, as an ingress defines it. Live revisions may define it differently."""
        router = exchange.plane.router(ingress)
        affinity = None if router is None else router.policy.affinity
        if affinity is None:
            if exchange.marks.pop(self, None) is not None:
                exchange.preference = None
            return
        sessions = sessions_of(affinity, self._secret, ingress.main)
        if sessions is not exchange.marks.get(self):
            exchange.marks[self] = sessions
            exchange.preference = sessions.preference(exchange.request, exchange.downstream.peers)

    def sending(self, exchange: Exchange, terms: Terms) -> None:
        sessions = exchange.marks.get(self)
        if sessions is not None:
            terms.replaced = sessions.unpinned(exchange.request)

    def response(self, exchange: Exchange, head: ResponseHead) -> None:
        sessions = exchange.marks.get(self)
        if sessions is not None and head.status != 304:  # a 304 updates a response that caches may share
            replica, peers = exchange.dispatcher.replica, exchange.downstream.peers
            head.fields = sessions.pinned(head.fields, exchange.request, replica, peers)


class Sessions:
    """The sessions of one ingress with the option `affinity`."""

    __slots__ = ("_cookie", "_pins", "_sources")

    def __init__(self, option: str, secret: bytes, ingress: ReplicaSetKey) -> None:
        self._sources = key_sources(option)
        self._pins = Pins(secret, ingress)
        self._cookie = COOKIE + dotted(ingress)

    def preference(self, request: ClientRequest, peers: bytes) -> Preference | None:
        """Return the preference of the session or the first affinity key that a request has; None: it has none.

        `peers`: the client of the request, as encoded by `hop.peers`.
        """
        preferences = (self._preference_at(source, request, peers) for source in self._sources)
        return next((preference for preference in preferences if preference is not None), None)

    def _preference_at(self, source: KeySource, request: ClientRequest, peers: bytes) -> Preference | None:
        if source.where == "client":
            return Preference(key=peers.partition(b" ")[0].decode("latin-1"))
        value = value_at(source, request, self._cookie)
        pinned = None if value is None else self._pins.split(value)
        if source.where == "own_cookie":
            return None if pinned is None else Preference(session=pinned[1], stays=True)
        if value is None:
            return None
        if pinned is None:
            return Preference(key=value)
        id, session = pinned
        return Preference(session=session, key=id if source.where == "header" else value)

    def unpinned(self, request: ClientRequest) -> Header | None:
        """Return the field of a request without its pin, so that the app finds the ID that it has issued.

        None: no field has a pin.
        """
        for source in self._sources:
            value = value_at(source, request) if source.where == "header" else None
            if value is not None and (pinned := self._pins.split(value)) is not None:
                return source.name.encode(), pinned[0].encode("latin-1")
        return None

    def pinned(self, fields: list[Header], request: ClientRequest, replica: ReplicaId, peers: bytes) -> list[Header]:
        """Return the fields of a response, with the pin of the replica where clients find the ID of their session.

        An ID that the client has chosen gets no pin. A response that caches may store, or that updates a stored one,
        gets no cookie.
        """
        for source in self._sources:
            if source.where == "header":
                name = source.name.encode()
                if any(field_name == name for field_name, _ in fields):
                    pin, issued_before = self._pins.attach("", replica).encode(), request.values(name)
                    fields = [
                        (field_name, value + pin)
                        if field_name == name and value and value not in issued_before
                        else (field_name, value)
                        for field_name, value in fields
                    ]
            elif source.where == "own_cookie" and not self._has_cookie(request, replica) and not _is_shared(fields):
                secure = "; Secure" if peers.endswith((b" https", b" wss")) else ""
                cookie = f"{self._cookie}={self._pins.attach(NOTHING, replica)}; Path=/; HttpOnly; SameSite=Lax{secure}"
                fields = [*fields, (b"set-cookie", cookie.encode())]
        return fields

    def _has_cookie(self, request: ClientRequest, replica: ReplicaId) -> bool:
        return value_at(KeySource("own_cookie"), request, self._cookie) == self._pins.attach(NOTHING, replica)


@lru_cache(1_024)
def sessions_of(option: str, secret: bytes, ingress: ReplicaSetKey) -> Sessions:
    """Return the sessions of an ingress. All live revisions with the same option share them."""
    return Sessions(option, secret, ingress)


def _is_shared(fields: list[Header]) -> bool:
    """Return whether a cache may store a response for several clients (RFC 9111, 3.5 and 5.2.2)."""
    control = b",".join(value for name, value in fields if name == b"cache-control").lower()
    return b"public" in control or b"s-maxage" in control
