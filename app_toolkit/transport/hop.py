"""What a caller and a replica say to each other beside the request itself: a few internal header fields.

The hop is plain HTTP/1.1. The caller puts its own fields before all others, and first of them `x-app-toolkit-hop`; it
carries a token of the secret and what the replica's server cannot know by itself (who the client is, which scheme it
used, how long the request may still take). The replica answers with `x-app-toolkit-refused` and 503 where no user code
ran; user code cannot answer so. Nothing under the internal prefix ever crosses the edge in either direction.

A caller that was refused because others filled the replica joins its wait queue: one more exchange, a GET whose second
field is `x-app-toolkit-queue`. The response does not end. Each byte of it reserves a slot. A request that redeems the
reservation has `x-app-toolkit-redeem` as its second field. Both fields carry the name of the caller.

A call of a deployment's method is a POST with `x-app-toolkit-call`, which names the method; its body is what
`transport.calls` makes of the arguments. Nobody believes that field who has not compared the token. A key beside the
method says that the caller can reach the replica on another way, too, which large payloads take; the word `out_of_band`
behind it, that the arguments will. Then there is no body, and the `100 Continue` says that the replica waits for them.

The response to a request has `x-app-toolkit-stream` if it is a stream. The replica decides whether the stream leaves
the ongoing requests, and its caller does as the field says.

Of a request that belongs to a trace, `x-app-toolkit-trace` says which (`core.trace`); the client's own fields are
passed on beside it.
"""

import hashlib
import hmac
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

PROTOCOL = b"1"
INTERNAL_PREFIX = b"x-app-toolkit-"
HOP = b"x-app-toolkit-hop"
REFUSED = b"x-app-toolkit-refused"
QUEUE = b"x-app-toolkit-queue"
REDEEM = b"x-app-toolkit-redeem"
CALL = b"x-app-toolkit-call"
TRACE = b"x-app-toolkit-trace"
STREAM = b"x-app-toolkit-stream"
"""Of a response: it is a stream. Its value says whether it is `OPEN`, and its slot is free, or has `KEPT` its slot."""

OPEN, KEPT = b"open", b"kept"

CLOSES = b"x-app-toolkit-closes"
"""Of a response: the app wants its client's connection closed. A replica that stops closes its own connection alone."""

PROBE = b"x-app-toolkit-probe"
"""Of a request: it only asks whether the gate answers."""

EXPECT = b"x-app-toolkit-expect"
"""The caller, not the client, asked for `100 Continue`: it holds the body back until user code wants it."""

OUT_OF_BAND = "out_of_band"

Refusal = Literal["busy", "draining", "websockets", "secret", "protocol"]
"""Why a replica did not run a request. The first three are a hand-over, the others an operator's mistake."""

REFUSALS: frozenset[bytes] = frozenset(word.encode() for word in get_args(Refusal))


class Hop(NamedTuple):
    """The origin of a request, as the edge saw it, and its deadline."""

    request_id: str
    timeout_ms: int | None
    client: tuple[str, int] | None
    server: tuple[str, int] | None
    scheme: str
    http_version: str


class CallField(NamedTuple):
    """What a call's field says."""

    method: str
    key: str
    """Under which payloads of this exchange go out-of-band; empty: its caller knows no other way."""
    out_of_band: bool
    """Whether the arguments do."""


def encode_call(method: str, key: str, *, out_of_band: bool) -> bytes:
    return f"{method} {key} {OUT_OF_BAND}".encode() if out_of_band else f"{method} {key}".encode()


def decode_call(value: str) -> CallField:
    method, _, rest = value.partition(" ")
    key, _, word = rest.partition(" ")
    return CallField(method, key, word == OUT_OF_BAND)


def is_internal(name: bytes) -> bool:
    """Whether a field, in small letters, is ours; apps that turn `-` into `_` must not be fooled either."""
    return name.replace(b"_", b"-").startswith(INTERNAL_PREFIX)


def peers(client: tuple[str, int] | None, server: tuple[str, int] | None, scheme: str) -> bytes:
    """Where a request came from, and how: the part of a hop that one client connection's requests usually share."""
    return b" ".join([*_peer(client), *_peer(server), scheme.encode()])


def token(secret: bytes) -> bytes:
    """What callers show with each request: it says that the hop fields are ours.

    It is not the secret itself, because it crosses the network in the clear: whoever reads it there still cannot open a
    connection.
    """
    return hmac.new(secret, b"app-toolkit hop", hashlib.sha256).hexdigest()[:32].encode()


def encode(
    token: bytes, request_id: bytes, http_version: bytes, connection: bytes, timeout_ms: int | None = None
) -> bytes:
    """The field's value; `connection` is what `peers` gave, `timeout_ms` the time that the request has left."""
    left = b"-" if timeout_ms is None else b"%d" % timeout_ms
    return b"%b %b %b %b %b %b" % (PROTOCOL, token, request_id, left, http_version, connection)


def decode(value: bytes, token: bytes) -> Hop | Refusal:
    """The hop, or why it is refused. The token is compared in constant time before anything else is believed."""
    protocol, _, rest = value.partition(b" ")
    if protocol != PROTOCOL:
        return "protocol"
    given, _, rest = rest.partition(b" ")
    if not hmac.compare_digest(given, token):
        return "secret"
    request_id, left, version, connection = rest.decode("latin-1").split(" ", 3)
    client, server, scheme = _read_peers(connection)
    return Hop(request_id, None if left == "-" else int(left), client, server, scheme, version)


@lru_cache(4_096)
def _read_peers(connection: str) -> tuple[tuple[str, int] | None, tuple[str, int] | None, str]:
    """What `peers` said; the requests of one client's connection say the same."""
    client, client_port, server, server_port, scheme = connection.split(" ")
    return (
        None if client == "-" else (client, int(client_port)),
        None if server == "-" else (server, int(server_port)),
        scheme,
    )


def _peer(address: tuple[str, int] | None) -> tuple[bytes, bytes]:
    if address is None:
        return b"-", b"0"
    # An IPv6 scope id, and whatever a proxy before ours calls its client, may hold anything; no space, then.
    return address[0].replace(" ", "").encode("latin-1", "replace") or b"-", b"%d" % address[1]
