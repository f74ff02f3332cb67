"""Session affinity at the proxy: reads the affinity key of a request, and pins the session that a response begins."""

from app_toolkit.config.affinity import KeySource, key_sources
from app_toolkit.core.affinity import Key, Pinned
from app_toolkit.core.sessions import Pins, digest, from_cookies, from_query
from app_toolkit.proxy.request import Request
from app_toolkit.types import Header, ReplicaId

COOKIE = "app-toolkit-session-"
"""The beginning of the name of the proxy's own cookie. The name of the ingress follows, with a dot for its slash."""

NOTHING = "-"
"""The ID in the proxy's own cookie, which only has a pin."""


class Sessions:
    """The sessions of one ingress with the option `affinity`."""

    __slots__ = ("_cookie", "_pins", "_sources", "option")

    def __init__(self, option: str, secret: bytes, ingress: str) -> None:
        self.option = option
        self._sources = key_sources(option)
        self._pins = Pins(secret, ingress)
        self._cookie = COOKIE + ingress.replace("/", ".")

    def key(self, request: Request, peers: bytes) -> Key | None:
        """Return the first affinity key that a request has; None: it has none.

        The pin is removed from a field of the request, so that the app finds the ID that it has issued. `peers`: the
        client of the request, as encoded by `hop.peers`.
        """
        keys = (self._key_at(source, request, peers) for source in self._sources)
        return next((key for key in keys if key is not None), None)

    def _key_at(self, source: KeySource, request: Request, peers: bytes) -> Key | None:
        if source.where == "client":
            return peers.partition(b" ")[0].decode("latin-1")
        value = value_at(source, request, self._cookie)
        pinned = None if value is None else self._pins.split(value)
        if source.where == "own_cookie":
            return None if pinned is None else Pinned(pinned[1], "")
        if value is None or pinned is None:
            return value
        id, replica = pinned
        if source.where == "header":
            request.replace_field(source.name.encode(), id.encode("latin-1"))
            return Pinned(replica, id)
        return Pinned(replica, value)

    def pinned(self, fields: list[Header], key: Key | None, replica: ReplicaId, peers: bytes) -> list[Header]:
        """Return the fields of a response, with the pin of the replica where clients find the ID of their session."""
        for source in self._sources:
            if source.where == "header":
                name, pin = source.name.encode(), self._pins.attach("", replica).encode()
                fields = [(each, value + pin) if each == name and value else (each, value) for each, value in fields]
            elif source.where == "own_cookie" and not (isinstance(key, Pinned) and key.replica == digest(replica)):
                secure = "; Secure" if peers.endswith((b" https", b" wss")) else ""
                cookie = f"{self._cookie}={self._pins.attach(NOTHING, replica)}; Path=/; HttpOnly; SameSite=Lax{secure}"
                fields = [*fields, (b"set-cookie", cookie.encode())]
        return fields


def value_at(source: KeySource, request: Request, own_cookie: str = "") -> str | None:
    """Return what a request has in a header, a query or a cookie; None: nothing. `own_cookie`: the proxy's cookie."""
    if source.where == "query":
        return from_query(request.query, source.name)
    if source.where == "header":
        field = request.field(source.name.encode())
        return None if field is None else field.decode("latin-1") or None
    cookies = request.field(b"cookie")
    return None if cookies is None else from_cookies(cookies, source.name or own_cookie)
