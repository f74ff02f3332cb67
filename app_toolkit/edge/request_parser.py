"""Parse and check the requests of a client, and rebuild them for a replica.

The head that is sent to a replica is composed from the parsed request, not copied from the client's bytes. So the proxy
and the replica cannot interpret a request differently (request smuggling).
"""

import ipaddress
import logging
import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
    parse_url,
)

from app_toolkit.contract.targets import SHARD_KEY as SHARD_KEY_FIELD
from app_toolkit.contract.targets import shard_key
from app_toolkit.edge import forwarded
from app_toolkit.errors import (
    BadRequest,
    HeadTooLarge,
    NotSupported,
    RequestError,
    URITooLong,
    VersionNotSupported,
)
from app_toolkit.exchange.allowed_time import TIMEOUT_FIELD
from app_toolkit.exchange.request import IDEMPOTENT, KEPT_BODY, REQUEST_ID_GRAMMAR, HTTPRequest
from app_toolkit.observability import tracing
from app_toolkit.observability.trace_context import TRACEPARENT, TRACESTATE, Trace, trace_of
from app_toolkit.types import Header
from app_toolkit.wire.hop import EXPECT, HOP, INTERNAL_PREFIX, MIRRORED, SHARD_KEY, TRACE, encode_key
from app_toolkit.wire.pool import lines_of

log = logging.getLogger("app_toolkit.proxy")

METHODS = IDEMPOTENT | {b"POST", b"PATCH", b"QUERY"}

# Fields that need special handling. All others are copied.
COPY, HOST, LENGTH, CODING, CONNECTION, UPGRADE, EXPECTATION, REQUEST_ID, TIMEOUT_S, FORWARDED, TRACED, SHARD, DROP = (
    range(13)
)
LOOK: dict[bytes, int] = {
    b"host": HOST,
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"connection": CONNECTION,
    b"upgrade": UPGRADE,
    b"expect": EXPECTATION,
    b"x-request-id": REQUEST_ID,
    TIMEOUT_FIELD: TIMEOUT_S,
    TRACEPARENT: TRACED,
    TRACESTATE: TRACED,
    SHARD_KEY_FIELD: SHARD,
    b"keep-alive": DROP,
    b"proxy-connection": DROP,
    b"proxy-authorization": DROP,
    b"te": DROP,
    b"trailer": DROP,
    b"http2-settings": DROP,
    **dict.fromkeys(forwarded.FIELDS, FORWARDED),
}

HOST_GRAMMAR = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(?::([0-9]{0,5}))?")
"""A name or an IPv6 address in brackets, and a port. `_is_host` checks the two groups further."""

SLICE = 2 * 1024
"""Bytes that are fed to the parser at once while no body arrives. This bounds the number of pipelined requests that one
call can produce."""

DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}

EXPECTS = (b"expect", b"100-continue")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Limits of a request head. The underlying parser has none."""

    head_bytes: int = 64 * 1024
    fields: int = 100
    url_bytes: int = 16 * 1024


class Body:
    """The body of one request, buffered on its way to a replica.

    * Bytes are forwarded in the order in which they arrived, and framed for the replica.
    * Forwarded bytes are retained for a retry until more than `KEPT_BODY` bytes have arrived or `forget` is called.
    """

    __slots__ = ("_discarding", "_passed", "_pieces", "chunked", "received", "retained", "waiting")

    def __init__(self, chunked: bool) -> None:
        self.chunked = chunked
        self._pieces: list[bytes] = []
        self.received = self.waiting = 0
        self.retained = True
        self._passed = 0
        self._discarding = False

    def append(self, data: bytes) -> None:
        self.received += len(data)
        if not self._discarding:
            self.waiting += len(data)
            self._pieces.append(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def copied(self) -> "Body | None":
        """Return a copy of which nothing was taken. None: not all bytes that have arrived are retained."""
        if not self.retained:
            return None
        body = Body(self.chunked)
        body._pieces = list(self._pieces)
        body.received = self.received
        body.waiting = sum(map(len, body._pieces))
        return body

    def end(self) -> None:
        """Frame the end of a chunked body."""
        if not self._discarding:
            self._pieces.append(b"0\r\n\r\n")

    def take(self) -> list[bytes]:
        """Return the pieces that have arrived since the last call."""
        pieces = self._pieces[self._passed :] if self._passed else self._pieces
        self.waiting = 0
        if self.retained and self.received <= KEPT_BODY:
            self._passed = len(self._pieces)
            return pieces
        self.retained = False
        self._pieces = []
        self._passed = 0
        return pieces

    def rewind(self) -> None:
        """Make the next `take` start at the first byte again. Allowed only while `retained` is true."""
        assert self.retained
        self._passed = 0
        self.waiting = self.received

    def forget(self) -> None:
        """Drop the forwarded bytes, because the request will not be sent again."""
        self.retained = False
        del self._pieces[: self._passed]
        self._passed = 0

    def discard(self) -> None:
        """Drop all bytes. From now on, arriving bytes are counted and not kept."""
        self._discarding = True
        self.retained = False
        self._pieces.clear()
        self._passed = self.waiting = 0


class Request(HTTPRequest):
    """One request whose head is complete. Its body continues to arrive until `complete` is true."""

    __slots__ = (
        "_internal",
        "body",
        "body_on_demand",
        "complete",
        "error",
        "expects",
        "fields",
        "forwarded",
        "id",
        "keep_alive",
        "length",
        "method",
        "path",
        "raw_path",
        "shard_key",
        "target",
        "timeout",
        "trace",
        "version",
        "websocket",
    )

    def __init__(self, method: bytes, version: str) -> None:
        self.method = method
        self.version = version
        self.path = ""
        self.raw_path = b""
        self.id: bytes | None = None
        self.keep_alive = False
        self.length: int | None = None
        self.expects = False
        #: Whether the body waits for a 100, because its size exceeds what is retained for a retry, or is unknown.
        self.body_on_demand = False
        self.websocket = False
        #: The unparsed value of `X-Request-Timeout-Seconds`.
        self.timeout: bytes | None = None
        self.error: RequestError | None = None
        #: The value of `X-SERVE-SHARD-KEY`; None: there is none.
        self.shard_key: str | None = None
        #: Its place in its trace. None: tracing is off.
        self.trace: Trace | None = None
        #: The forwarded fields, if a trusted proxy sent the request.
        self.forwarded: list[Header] = []
        self.complete = False
        self.body = Body(chunked=False)
        #: The target in origin form, without a fragment.
        self.target = b""
        #: The fields that replicas receive, except for the internal ones. Names are in lower case.
        self.fields: list[Header] = []
        #: The internal fields for the replica that do not depend on the attempt.
        self._internal: tuple[Header, ...] = ()

    @property
    def missing(self) -> int | None:
        """Bytes of the body that have not arrived. None: unknown."""
        if self.complete:
            return 0
        return None if self.length is None else self.length - self.body.received

    # For the dispatcher

    @property
    def body_retained(self) -> bool:
        return self.body.retained

    # For mirrors

    def copied(self) -> "Request | None":
        body = self.body.copied()
        if body is None:
            return None
        request = copy(self)
        request.body = body
        return request

    # For a replica

    def passed_on(
        self, replaced: Header | None = None, *, mirrored: bool = False
    ) -> tuple[Sequence[Header], list[Header]]:
        """Return what a replica gets: internal fields, besides those of the attempt, and the fields that its app sees.

        Parameters:
            replaced: A field that is sent instead of all fields with this name. None: there is none.
            mirrored: Mark the request as mirrored. The body follows at once.
        """
        internal, fields = self._internal, self.fields
        if replaced is not None:
            fields = [*(field for field in fields if field[0] != replaced[0]), replaced]
        if mirrored:
            fields = [field for field in fields if field[0] != b"expect"] or [(b"host", b"replica")]
            # After other fields, because the replica takes the first internal fields for itself.
            fields.append((MIRRORED, b"1"))
        elif self.body_on_demand and not self.expects:
            internal = (*internal, (EXPECT, b"1"))
        return internal, fields

    def head(
        self, hop: bytes, attempt: Sequence[Header] = (), replaced: Header | None = None, *, mirrored: bool = False
    ) -> bytes:
        """Return the head that is sent to a replica.

        Parameters:
            hop: The value of the hop field.
            attempt: The internal fields of the attempt.
            replaced: As for `passed_on`.
            mirrored: As for `passed_on`.
        """
        internal, fields = self.passed_on(replaced, mirrored=mirrored)
        if internal and internal[-1][0] == EXPECT:
            internal = (*internal, EXPECTS)
        lines = lines_of([(HOP, hop), *attempt, *internal, *fields])
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (self.method, self.target, lines)

    # For the affinity key

    @property
    def query(self) -> bytes:
        return self.target.partition(b"?")[2]

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a field that replicas receive. `name`: in lower case."""
        return [value for field_name, value in self.fields if field_name == name]

    def read_target(self, url: bytes, host: bytes | None) -> None:
        """Parse the request target in the forms of RFC 9112, 3.2. CONNECT is rejected before.

        Raises:
            BadRequest: The target is invalid, or names another host than the Host field.
        """
        if not url.isascii():
            raise BadRequest("the request target is not ASCII")
        if url[:1] != b"/" and not (url == b"*" and self.method == b"OPTIONS"):
            url = _origin_form(url, host)
        self.target = url.partition(b"#")[0]
        self.raw_path = self.target.partition(b"?")[0]
        try:
            path: str = parse_url(self.target).path.decode("ascii")
        except HttpParserError:
            raise BadRequest("the request target is not a URL") from None
        # The replica's server decodes the path in the same way.
        self.path = unquote(path) if "%" in path else path

    def read_fields(self, fields: list[Header], believed: bool) -> bytes | None:
        """Check and copy the fields, and return the host. `believed`: the client is a trusted proxy."""
        host: bytes | None = None
        traced: list[Header] | None = None
        copied = self.fields
        for field in fields:
            name, value = field
            look = LOOK.get(name, COPY)
            if look == COPY:
                # An app server may treat `_` like `-`. So internal fields are dropped in both spellings, and so are
                # forwarded fields from an untrusted client. All of these names begin with `x` (120).
                if name[0] == 120:
                    spelt = name.replace(b"_", b"-")
                    if spelt.startswith(INTERNAL_PREFIX) or (not believed and forwarded.tells_of_a_client(spelt)):
                        continue
                copied.append(field)
            elif look == HOST:
                if host is not None:
                    raise BadRequest("the request has two Host fields")
                if not _is_host(value):
                    raise BadRequest("the Host field is not a host")
                host = value
                copied.append(field)
            elif look == LENGTH:
                self.length = int(value)
                copied.append((name, b"%d" % self.length))
            elif look == CODING:
                self._read_coding(value)
            elif look == CONNECTION:
                # An app sees this field when it runs on a plain server, too. It has no effect on the hop.
                if value.lower() == b"keep-alive":
                    copied.append(field)
            elif look == REQUEST_ID:
                if self.id is None and REQUEST_ID_GRAMMAR.fullmatch(value) is not None:
                    self.id = value
                    copied.append(field)
            elif look == TIMEOUT_S:
                self.timeout = value if self.timeout is None else self.timeout + b", " + value
                copied.append(field)
            elif look == TRACED:
                traced = [*(traced or ()), field]
                copied.append(field)
            elif look == SHARD:
                if self.shard_key is None and (key := shard_key(value)) is not None:
                    self.shard_key = key
                    self._internal += ((SHARD_KEY, encode_key(key)),)
                copied.append(field)
            elif look == FORWARDED:
                if believed:
                    self.forwarded.append(field)
                    copied.append(field)
            elif look == EXPECTATION:
                self.expects = self.version == "1.1" and value.lower() == b"100-continue"
        if host is None and self.version == "1.1":
            raise BadRequest("the request has no Host field")
        trace = None if traced is None else trace_of(traced)
        if tracing.current is not None:
            self.trace = tracing.current.begin(trace)
            trace = self.trace.forwarded
        if trace is not None:
            self._internal += ((TRACE, trace.encode()),)
        self._end_fields()
        return host

    def _read_coding(self, value: bytes) -> None:
        if self.version != "1.1":
            raise BadRequest("HTTP/1.0 has no transfer codings")
        if self.body.chunked or value.strip().lower() != b"chunked":
            raise NotSupported(f"the transfer coding {value[:40]!r} is not supported, only a single 'chunked' is")
        self.body.chunked = True

    def _end_fields(self) -> None:
        if self.body.chunked:
            if self.length is not None:
                raise BadRequest("the request has a Content-Length and a transfer coding")
            self.fields.append((b"transfer-encoding", b"chunked"))
            self.body_on_demand = True
        elif self.length:
            self.body_on_demand = self.length > KEPT_BODY
        else:
            self.expects = False
        if self.expects:
            self.fields.append(EXPECTS)

    def become_websocket(self) -> None:
        """Mark the request as a WebSocket handshake. All bytes after the head belong to the tunnel."""
        self.websocket = True
        self.keep_alive = False
        self.fields += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]


class RequestParser:
    """Parses the bytes from one client into requests, in order.

    * Invalid input raises no exception. It produces a last request with an `error`.
    * The underlying parser cannot be stopped within a `feed`, so the caller feeds at most `feed_limit` bytes at a time.
    """

    def __init__(self, limits: HeadLimits, believed: bool = False) -> None:
        """`believed`: forwarded fields are passed on and recorded in the request. Otherwise they are dropped."""
        self.limits = limits
        self.believed = believed
        #: Requests with a complete head, in order. The connection removes a request when it begins its exchange.
        #: A list, because an empty deque needs more memory than everything else that an idle parser holds.
        self.requests: list[Request] = []
        #: The request whose body is arriving.
        self.request: Request | None = None
        self.in_head = False
        self.refused = False
        self._head_bytes = 0
        #: Bytes since the last byte of body data: chunk extensions and trailers.
        self._framing_bytes = 0
        self._url = b""
        self._fields: list[Header] = []
        self._instead: bytes | None = None
        self._parser: HttpRequestParser | None = self._new_parser()

    def _new_parser(self) -> HttpRequestParser:
        parser = HttpRequestParser(self)
        # Otherwise the parser rejects data after a request with `connection: close`, and that request gets no response.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    @property
    def feed_limit(self) -> int:
        """The most bytes to pass to the next `feed`."""
        request = self.request
        if request is None:
            return SLICE
        if request.websocket or request.missing is None:
            return 1 << 30 if request.websocket else 16 * 1024
        return max(request.missing, 1)

    def feed(self, data: bytes) -> None:
        request = self.request
        if request is not None and request.websocket:
            request.body.append(data)
            return
        if self.refused or self._parser is None:
            return
        received = 0 if request is None else request.body.received
        self._parse(data)
        if self.in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self.refuse(self._head_too_large())
        elif request is not None and request is self.request and not self.refused:
            # The underlying parser buffers a trailer until it is complete, and does not limit its length.
            self._framing_bytes = 0 if request.body.received > received else self._framing_bytes + len(data)
            if self._framing_bytes > self.limits.head_bytes:
                most = self.limits.head_bytes
                self.refuse(HeadTooLarge(f"the trailers or chunk extensions are longer than {most} bytes"))

    def refuse(self, error: RequestError) -> None:
        """Stop parsing. The error becomes the `error` of the arriving request, or else of a new last request."""
        self.refused = True
        request = self.request
        if request is None or request.complete:
            request = Request(b"-", "1.1")
            request.raw_path = self._url[:200]
            self.requests.append(request)
        request.error = error
        self.in_head = False

    def close(self) -> None:
        """Drop all state, because no more requests are read from the client."""
        self._parser = None
        self.requests.clear()
        self.request = None
        self.in_head = False

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, RequestError):
                log.error("the request parser failed", exc_info=cause)
                cause = RequestError("the proxy failed while it read the request")
            self.refuse(cause)
            return
        except HttpParserError as error:
            self.refuse(BadRequest(f"this is not HTTP: {error}"))
            return
        else:
            return
        # Not within the `except`: Python would replace the context of an error, which names the error of a callback.
        self._after_upgrade(rest)

    def _after_upgrade(self, rest: bytes) -> None:
        """Pass on the first bytes of the tunnel, or parse the request again without an upgrade that is ignored."""
        instead, self._instead = self._instead, None
        if instead is not None:
            self._parser = self._new_parser()
            self._parse(instead + rest)
        elif rest and self.request is not None:
            self.request.body.append(rest)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self.in_head = True
        self._head_bytes = 0
        self._url = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self.limits.url_bytes:
            raise URITooLong(f"the request target is longer than {self.limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:  # trailers are dropped
            return
        self._fields.append((name.lower(), value))
        if len(self._fields) > self.limits.fields:
            raise HeadTooLarge(f"the head has more than {self.limits.fields} fields")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        method: bytes = self._parser.get_method()
        version: str = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise VersionNotSupported(f"HTTP/{version} is not supported, only 1.1 and 1.0 are")
        if method not in METHODS:
            raise NotSupported(f"the method {method.decode('latin-1')} is not supported")
        upgrade = self._parser.should_upgrade()
        if upgrade and not _asks_for_websocket(self._fields):
            self._instead = _without_upgrade(method, self._url, version, self._fields)
            return
        if self._head_bytes + SLICE > self.limits.head_bytes:
            self._check_head()
        request = Request(method, version)
        host = request.read_fields(self._fields, self.believed)
        request.read_target(self._url, host)
        request.keep_alive = version == "1.1" and self._parser.should_keep_alive()
        if upgrade:
            if method != b"GET" or version != "1.1" or request.length or request.body.chunked:
                raise BadRequest("a WebSocket handshake must be an HTTP/1.1 GET without a body")
            request.become_websocket()
        self.in_head = False
        self._url, self._fields = b"", []  # an idle connection keeps no head
        self.request = request
        self.requests.append(request)

    def on_body(self, data: bytes) -> None:
        request = self.request
        if request is not None:
            request.body.append(data)

    def on_message_complete(self) -> None:
        request = self.request
        if self._instead is not None or request is None or request.websocket:
            return
        if request.body.chunked:
            request.body.end()
        request.complete = True
        # The trailers may contain `connection: close`, and then the parser reads nothing after the request.
        request.keep_alive = request.keep_alive and self._parser is not None and self._parser.should_keep_alive()
        self.request = None

    def _check_head(self) -> None:
        """Check the exact size of the head, because the last fed bytes may contain more than its end."""
        size = len(self._url) + sum(len(name) + len(value) for name, value in self._fields)
        if size > self.limits.head_bytes:
            raise self._head_too_large()

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the head is longer than {self.limits.head_bytes} bytes")


@lru_cache(1_024)
def _is_host(value: bytes) -> bool:
    """Return whether the value can be a part of a URL. With another value, an app that builds URLs would answer 500."""
    match = HOST_GRAMMAR.fullmatch(value)
    if match is None:
        return False
    address, port = match.groups()
    if address is not None:
        try:
            ipaddress.IPv6Address(address.decode())
        except ValueError:
            return False
    return not port or int(port) <= 65_535


def _origin_form(url: bytes, host: bytes | None) -> bytes:
    """Convert an absolute-form target to origin form. Raise `BadRequest` if its authority is not that of `host`."""
    try:
        parsed = parse_url(url)
    except HttpParserError:
        raise BadRequest("the request target is not a URL") from None
    scheme = (parsed.schema or b"").lower()
    if scheme not in DEFAULT_PORTS or parsed.userinfo or not parsed.host:
        raise BadRequest("the request target is neither a path nor an http URL")
    named = parsed.host.lower()
    if b":" in named:
        named = b"[%b]" % named
    if parsed.port is not None:
        named = b"%b:%d" % (named, parsed.port)
    default = DEFAULT_PORTS[scheme]
    if named.removesuffix(default) != (host or b"").lower().removesuffix(default):
        raise BadRequest("the request target and the Host field name different hosts")
    query = b"" if parsed.query is None else b"?" + parsed.query
    return (parsed.path or b"/") + query


def _asks_for_websocket(fields: list[Header]) -> bool:
    protocols = [value.strip().lower() for name, value in fields if name == b"upgrade"]
    if protocols == [b"websocket"]:
        return True
    if any(b"websocket" in protocol for protocol in protocols):
        raise BadRequest("Upgrade names websocket together with other protocols")
    return False


def _without_upgrade(method: bytes, url: bytes, version: str, fields: list[Header]) -> bytes:
    """Return the head without the upgrade, for a new parser that then reads the body."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, url, version.encode())]
    for name, value in fields:
        if name in (b"upgrade", b"http2-settings"):
            continue
        if name == b"connection":
            words = [word.strip() for word in value.split(b",")]
            value = b", ".join(w for w in words if w.lower() not in (b"upgrade", b"http2-settings"))
            if not value:
                continue
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))
