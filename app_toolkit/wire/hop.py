"""The internal header fields of the hop between a caller and a replica.

The hop is plain HTTP/1.1. The caller puts its internal fields before all others, beginning with `x-app-toolkit-hop`.
That field contains a token derived from the secret, and information that the replica's server cannot determine itself
(the address of the client, its scheme, the time until the deadline). If the replica refuses a request, it responds with
503 and `x-app-toolkit-refused`, and no user code ran. User code cannot send this field. Fields with the internal prefix
never cross the edge, in either direction.

A caller whose request was refused because other callers have filled the replica joins its wait queue. This is a
separate exchange: a GET whose second field is `x-app-toolkit-queue`, and whose response does not end. Each byte of the
response reserves a slot. A request that redeems a reservation has `x-app-toolkit-redeem` as its second field. Both
fields contain the name of the caller.

A call of a deployment's method is a POST with `x-app-toolkit-call`, which names the method. Its body contains the
arguments as encoded by `wire.calls`. The replica must compare the token before it uses this field. A key after the
method means that the caller and the replica can exchange large payloads out-of-band. The word `out_of_band` after the
key means that the arguments are sent out-of-band. Then the request has no body, and the replica sends `100 Continue`
when it waits for the arguments.

If the response to a request is a stream, it has `x-app-toolkit-stream`. The replica decides whether the stream still
counts as an ongoing request, and the caller does as the field says.

A call whose caller assumes that the replica holds its affinity key (`exchange.placement.holders`) has
`x-app-toolkit-affinity` with the key. If that is not so any more, the replica refuses the call as moved. A response to
a call, and this refusal, have `x-app-toolkit-holdings` if keys have places in the replica: the keys that it holds.

If a request has a shard key, `x-app-toolkit-shard-key` contains it. The calls that are made for the request have the
same key.

If a request belongs to a trace, `x-app-toolkit-trace` contains the trace (`observability.trace_context`). The client's
own trace fields are also passed on.
"""

import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple, get_args
from urllib.parse import quote, unquote

from app_toolkit.contract.holdings import MOST_KEYS, Holdings

PROTOCOL = b"1"
INTERNAL_PREFIX = b"x-app-toolkit-"
HOP = b"x-app-toolkit-hop"
REFUSED = b"x-app-toolkit-refused"
QUEUE = b"x-app-toolkit-queue"
REDEEM = b"x-app-toolkit-redeem"
CALL = b"x-app-toolkit-call"
TRACE = b"x-app-toolkit-trace"
SHARD_KEY = b"x-app-toolkit-shard-key"
STREAM = b"x-app-toolkit-stream"
"""Marks a response as a stream. The value is `OPEN` if the stream holds no slot, `LASTING` if it holds no slot and the
deadline of the request does not end it, and `KEPT` if it keeps its slot."""

OPEN, LASTING, KEPT = b"open", b"lasting", b"kept"

CLOSES = b"x-app-toolkit-closes"
"""Marks a response after which the app asks to close the client's connection. The app's `Connection: close` is sent as
this field, because on the hop, `Connection: close` concerns the connection of the caller."""

PROBE = b"x-app-toolkit-probe"
"""Marks a request that only probes whether the replica's server responds."""

EXPECT = b"x-app-toolkit-expect"
"""Marks a request whose `Expect: 100-continue` comes from the caller and not from the client. The caller holds the body
back until user code reads it."""

SLOW_BODY = b"x-app-toolkit-slow-body"
"""Marks a request whose body arrives slowly. The replica keeps a share of its slots free of such requests."""

MIRRORED = b"x-app-toolkit-mirrored"
"""Marks a mirrored request. It follows other fields, so that the app sees it."""

OUT_OF_BAND = "out_of_band"

AFFINITY = b"x-app-toolkit-affinity"
HOLDINGS = b"x-app-toolkit-holdings"

LONGEST_HOLDINGS = 4_096
"""The maximum number of bytes in the value of `HOLDINGS`. It has as many keys as fit."""

Refusal = Literal["busy", "draining", "websockets", "moved", "slow_bodies", "secret", "protocol"]
"""Why a replica refused a request. After one of the first five, the request waits or is reassigned. The others are
configuration errors."""

REFUSALS: frozenset[bytes] = frozenset(word.encode() for word in get_args(Refusal))


class Hop(NamedTuple):
    """The decoded hop field: the origin of a request as seen by the edge, and the time until its deadline."""

    request_id: str
    timeout_ms: int | None
    client: tuple[str, int] | None
    server: tuple[str, int] | None
    scheme: str
    http_version: str


class CallField(NamedTuple):
    """The decoded field of a call."""

    method: str
    key: str
    """The key of out-of-band payloads of this exchange. Empty: the caller does not support them."""
    out_of_band: bool
    """Whether the arguments are sent out-of-band."""


def encode_call(method: str, key: str, *, out_of_band: bool) -> bytes:
    return f"{method} {key} {OUT_OF_BAND}".encode() if out_of_band else f"{method} {key}".encode()


def decode_call(value: str) -> CallField:
    method, _, rest = value.partition(" ")
    key, _, word = rest.partition(" ")
    return CallField(method, key, word == OUT_OF_BAND)


def encode_key(key: str) -> bytes:
    """Encode an affinity key or shard key, which may have any characters."""
    return quote(key, safe="", errors="surrogatepass").encode()


def decode_key(value: bytes) -> str:
    return unquote(value.decode(), errors="surrogatepass")


def encode_holdings(version: int, free: int, keys: Iterable[str]) -> bytes:
    """Encode the keys that a replica holds, the most recently used first, and the number of free places."""
    value = b"%d %d" % (version, free)
    for key in islice(keys, MOST_KEYS):
        longer = b"%b %b" % (value, encode_key(key))
        if len(longer) > LONGEST_HOLDINGS:
            break
        value = longer
    return value


def decode_holdings(value: bytes) -> Holdings:
    version, free, *keys = value.split(b" ")
    return Holdings(int(version), tuple(map(decode_key, keys)), int(free))


def is_internal(name: bytes) -> bool:
    """Return whether a field name in lower case is internal. `_` counts as `-`, because some apps treat them alike."""
    return name.replace(b"_", b"-").startswith(INTERNAL_PREFIX)


def peers(client: tuple[str, int] | None, server: tuple[str, int] | None, scheme: str) -> bytes:
    """Encode both addresses and the scheme of a client connection, which its requests usually share."""
    return b" ".join([*_peer(client), *_peer(server), scheme.encode()])


def token(secret: bytes) -> bytes:
    """Return the token that authenticates the hop fields of each request.

    The token is not the secret itself, because it is sent in clear text. A process that reads the token on the network
    cannot open a connection with it.
    """
    return hmac.new(secret, b"app-toolkit hop", hashlib.sha256).hexdigest()[:32].encode()


def encode(
    token: bytes, request_id: bytes, http_version: bytes, connection: bytes, timeout_ms: int | None = None
) -> bytes:
    """Encode the hop field. `connection` is the result of `peers`, `timeout_ms` the time until the deadline, if any."""
    left = b"-" if timeout_ms is None else b"%d" % timeout_ms
    return b"%b %b %b %b %b %b" % (PROTOCOL, token, request_id, left, http_version, connection)


def decode(value: bytes, token: bytes) -> Hop | Refusal:
    """Decode the hop field, or return why it is refused. The token is compared, in constant time, before the rest."""
    protocol, _, rest = value.partition(b" ")
    if protocol != PROTOCOL:
        return "protocol"
    sent_token, _, rest = rest.partition(b" ")
    if not hmac.compare_digest(sent_token, token):
        return "secret"
    request_id, left, version, connection = rest.decode("latin-1").split(" ", 3)
    client, server, scheme = read_peers(connection)
    return Hop(request_id, None if left == "-" else int(left), client, server, scheme, version)


@lru_cache(4_096)
def read_peers(connection: str) -> tuple[tuple[str, int] | None, tuple[str, int] | None, str]:
    """Decode the result of `peers`. Cached, because the requests of a client connection share it."""
    client, client_port, server, server_port, scheme = connection.split(" ")
    return (
        None if client == "-" else (client, int(client_port)),
        None if server == "-" else (server, int(server_port)),
        scheme,
    )


def _peer(address: tuple[str, int] | None) -> tuple[bytes, bytes]:
    if address is None:
        return b"-", b"0"
    # An IPv6 scope id, or a client address from a forwarded field, may contain spaces.
    return address[0].replace(" ", "").encode("latin-1", "replace") or b"-", b"%d" % address[1]
