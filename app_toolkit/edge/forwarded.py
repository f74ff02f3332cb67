"""Reads the fields in which a proxy in front of this one describes its client, and decides which proxies to trust."""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from app_toolkit.types import Header

FOR = b"x-forwarded-for"
PROTO = b"x-forwarded-proto"
SCHEMES = frozenset(("http", "https", "ws", "wss"))

FIELDS = frozenset((b"forwarded", FOR, PROTO))
"""The lowercase names of the fields that are standard or that this module reads. `tells_of_a_client` matches more."""

LONGEST_CLIENT = 253
"""The maximum number of characters of a client, which is that of a host name. A longer client is ignored."""


def tells_of_a_client(name: bytes) -> bool:
    """Return whether apps read facts about the client from a field. `name`: in lowercase, with `-` instead of `_`."""
    return name.startswith(b"x-forwarded-") or name == b"x-real-ip"


class Trust:
    """The hosts whose forwarded fields are trusted."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network] | None) -> None:
        """`networks`: the trusted networks; None: every host is trusted."""
        self._networks = None if networks is None else tuple(networks)

    def __contains__(self, host: str) -> bool:
        """Return whether a host, as given by a socket or a field, is trusted.

        A host that is not an IP address is trusted only if every host is trusted.
        """
        if self._networks is None:
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

    def client(self, fields: Iterable[Header]) -> tuple[str, int] | None:
        """Return the host and the port of the client: the rightmost entry of `X-Forwarded-For` that is not trusted.

        If all entries are trusted, this is the first entry. The port is 0 if the entry has none. Returns None if there
        is no such field, or if the host is empty or too long.
        """
        addresses = b",".join(value for name, value in fields if name == FOR).decode("latin-1")
        named = [entry.strip() for entry in addresses.split(",")]
        for entry in reversed(named):
            host, port = _host_and_port(entry)
            if host not in self:
                break
        else:
            host, port = _host_and_port(named[0])
        return (host, port) if 0 < len(host) <= LONGEST_CLIENT else None


def scheme(fields: Iterable[Header]) -> str | None:
    """Return the scheme that the client used, from the last `X-Forwarded-Proto`; None: it is missing or not known."""
    scheme: str | None = None
    for name, value in fields:
        if name == PROTO:
            scheme = value.decode("latin-1").strip()
    return scheme if scheme in SCHEMES else None


def _host_and_port(entry: str) -> tuple[str, int]:
    """Split `host`, `host:port`, `[host]` or `[host]:port`. Anything else counts as a host."""
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return entry, 0
        return host, _port(rest[1:]) or 0
    host, colon, digits = entry.rpartition(":")
    port = _port(digits) if colon and ":" not in host else None
    return (entry, 0) if port is None else (host, port)


def _port(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 5 else None
