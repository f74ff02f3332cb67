"""Session affinity: the affinity key of a request, and the pin that names the replica of a session.

If the client chooses the ID of a session, the ID is hashed, and all proxies choose the same replica
(`exchange.placement.hashed`).

An ID that the app issues is known by one replica only. Such an ID carries a *pin*, `ID~PIN`, which names the replica
and proves that this instance has made it. So every proxy finds the replica, also after a restart, and no process has a
table of sessions.
"""

import hashlib
import hmac
from base64 import b32encode
from functools import lru_cache
from urllib.parse import parse_qsl

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.types import ReplicaId

MOST_PINS = 4_096
"""The maximum number of replicas whose pins are remembered, so that they are computed once."""

SEPARATOR = "~"
"""Between an ID and its pin. Allowed in header fields, cookies and queries."""


def from_query(query: bytes, name: str) -> str | None:
    """Return the first value of a parameter of a query; None: there is none."""
    for entry_name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if entry_name == name:
            return value or None
    return None


def from_cookies(cookies: bytes, name: str) -> str | None:
    """Return the first value of a cookie in a Cookie field; None: there is none."""
    for pair in cookies.decode("latin-1").split(";"):
        entry_name, equals, value = pair.strip().partition("=")
        if equals and entry_name == name:
            return value.strip('"') or None
    return None


@lru_cache(4_096)
def digest(replica: ReplicaId) -> str:
    """Return the part of a pin that names a replica: 8 characters."""
    return _letters(hashlib.blake2b(replica.encode(), digest_size=5).digest())


class Pins:
    """The pins of one ingress."""

    def __init__(self, secret: bytes, ingress: ReplicaSetKey) -> None:
        """`secret`: that of the instance. `ingress`: its replica set, so that others refuse its pins."""
        self._key = hashlib.sha256(b"app-toolkit session\0%b\0%b" % (ingress.name.encode(), secret)).digest()
        #: The pins of the replicas that have sent responses.
        self._pins: dict[ReplicaId, str] = {}

    def pin(self, replica: ReplicaId) -> str:
        """Return the pin of a replica, 16 characters."""
        pin = self._pins.get(replica)
        if pin is None:
            if len(self._pins) >= MOST_PINS:
                self._pins.clear()
            named = digest(replica)
            pin = self._pins[replica] = named + self._proof(named)
        return pin

    def attach(self, id: str, replica: ReplicaId) -> str:
        """Return an ID with the pin of the replica that has issued it."""
        return f"{id}{SEPARATOR}{self.pin(replica)}"

    def split(self, value: str) -> tuple[str, str] | None:
        """Return the ID, and the digest of its replica. None: the value has no valid pin."""
        id, separator, pin = value.rpartition(SEPARATOR)
        named, proof = pin[:8], pin[8:]
        if not separator or not pin.isascii() or not hmac.compare_digest(proof, self._proof(named)):
            return None
        return id, named

    def _proof(self, named: str) -> str:
        return _letters(hmac.new(self._key, named.encode(), hashlib.sha256).digest()[:5])


def _letters(data: bytes) -> str:
    return b32encode(data).decode().lower()
