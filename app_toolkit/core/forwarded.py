"""What a proxy before ours says of its client, and whom to believe it from."""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from app_toolkit.types import Header

FOR = b"x-forwarded-for"
PROTO = b"x-forwarded-proto"
SCHEMES = frozenset(("http", "https", "ws", "wss"))

FIELDS = frozenset((b"forwarded", FOR, PROTO))
"""Names in small letters of what is standard, or read here; `tells_of_a_client` knows the others."""

LONGEST_CLIENT = 253
"""Characters, as many as a host's name may have; what is longer is none."""


def tells_of_a_client(name: bytes) -> bool:
    """Whether a field, in small letters and with `-` for `_`, is one that apps take a proxy's word from."""
    return name.startswith(b"x-forwarded-") or name == b"x-real-ip"


class Trust:
    """Whose word is taken for where a request came from."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network] | None) -> None:
        """None: everybody is believed."""
        self._networks = None if networks is None else tuple(networks)

    def __contains__(self, host: str) -> bool:
        """Whether a host, as a socket or a field names it, is believed. What is no address is not, but by all."""
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
        """The client as `X-Forwarded-For` tells it: the last address, from the right, that is not itself believed.

        Where all are, the first one. Port 0 where none is given. None: nothing is told, or nothing that can be.
        """
        told = b",".join(value for name, value in fields if name == FOR).decode("latin-1")
        named = [entry.strip() for entry in told.split(",")]
        for entry in reversed(named):
            host, port = _host_and_port(entry)
            if host not in self:
                break
        else:
            host, port = _host_and_port(named[0])
        return (host, port) if 0 < len(host) <= LONGEST_CLIENT else None


def scheme(fields: Iterable[Header]) -> str | None:
    """The scheme that the client used, as the last `X-Forwarded-Proto` tells it; None: nothing is told, or nonsense."""
    told: str | None = None
    for name, value in fields:
        if name == PROTO:
            told = value.decode("latin-1").strip()
    return told if told in SCHEMES else None


def _host_and_port(entry: str) -> tuple[str, int]:
    """Of `host`, `host:port`, `[host]` or `[host]:port`; anything else is taken as a host."""
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
