"""A client's requests: parsed, checked, and rebuilt for a replica. Bytes come in, requests go out.

What a replica gets is written anew from what was understood here, so there is nothing that the two could read
differently.
"""

import ipaddress
import logging
import re
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

from app_toolkit.core import forwarded
from app_toolkit.core.deadlines import TIMEOUT_FIELD
from app_toolkit.core.trace import TRACEPARENT, TRACESTATE, trace_of
from app_toolkit.errors import (
    BadRequest,
    ContentTooLarge,
    HeadTooLarge,
    NotSupported,
    RequestError,
    URITooLong,
    VersionNotSupported,
)
from app_toolkit.transport.hop import EXPECT, HOP, INTERNAL_PREFIX, TRACE
from app_toolkit.types import Header

log = logging.getLogger("app_toolkit.proxy")

KEPT_BODY = 64 * 1024
"""Bytes of a body that are kept, to try another replica with, and that may wait before we stop reading."""

DISCARDED_BODY = 1024 * 1024
"""Bytes of a body that nobody wants which are read nevertheless, so that the connection can be used again."""

IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))
METHODS = IDEMPOTENT | {b"POST", b"PATCH", b"QUERY"}

# Fields that need a look. All others are copied.
COPY, HOST, LENGTH, CODING, CONNECTION, UPGRADE, EXPECTATION, REQUEST_ID, TIMEOUT_S, FORWARDED, TRACED, DROP = range(12)
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
    b"keep-alive": DROP,
    b"proxy-connection": DROP,
    b"proxy-authorization": DROP,
    b"te": DROP,
    b"trailer": DROP,
    b"http2-settings": DROP,
    **dict.fromkeys(forwarded.FIELDS, FORWARDED),
}

REQUEST_ID_GRAMMAR = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Safe as a part of a file's name, a log line, a shell command and a URL."""
HOST_GRAMMAR = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(?::([0-9]{0,5}))?")
"""A name or an address, and a port; what else is true of the two groups is `_is_host`'s to say."""

SLICE = 2 * 1024
"""Bytes that are fed at once while no body arrives: few enough to bound how many requests can come of them."""

DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """How much of a request is accepted, in bytes and numbers. The parser below us has no limits at all."""

    head_bytes: int = 64 * 1024
    fields: int = 100
    url_bytes: int = 16 * 1024


class Body:
    """The body of one request on its way to a replica.

    * Its bytes leave in the order in which they came, framed as the replica gets them.
    * What was passed on is kept, to be sent again, until there is more than `KEPT_BODY` of it, or `forget`.
    """

    __slots__ = ("_discarding", "_passed", "_pieces", "chunked", "received", "retained", "waiting")

    def __init__(self, chunked: bool) -> None:
        self.chunked = chunked
        self.received = 0
        self.waiting = 0
        self.retained = True
        self._pieces: list[bytes] = []
        self._passed = 0
        self._discarding = False

    def append(self, data: bytes) -> None:
        self.received += len(data)
        if not self._discarding:
            self.waiting += len(data)
            self._pieces.append(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end(self) -> None:
        if self.chunked and not self._discarding:
            self._pieces.append(b"0\r\n\r\n")

    def take(self) -> list[bytes]:
        """What has come since the last time."""
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
        """The next `take` begins at the first byte again; only while `retained`."""
        assert self.retained
        self._passed = 0
        self.waiting = self.received

    def forget(self) -> None:
        """Nobody will send it again."""
        self.retained = False
        del self._pieces[: self._passed]
        self._passed = 0

    def discard(self) -> None:
        """Nobody wants the rest of it: from here on it is only counted."""
        self._discarding = True
        self.retained = False
        self._pieces.clear()
        self._passed = self.waiting = 0


class Request:
    """One request, once its head is complete. Its body goes on arriving until `complete`."""

    __slots__ = (
        "_fields",
        "_target",
        "_trace",
        "body",
        "complete",
        "expects",
        "forwarded",
        "id",
        "keep_alive",
        "length",
        "method",
        "path",
        "raw_path",
        "refusal",
        "timeout",
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
        self.websocket = False
        #: What `X-Request-Timeout-Seconds` says, not understood yet.
        self.timeout: bytes | None = None
        self.refusal: RequestError | None = None
        #: What a proxy that is believed says of its client.
        self.forwarded: list[Header] = []
        self.complete = False
        self.body = Body(chunked=False)
        self._target = b""
        self._trace = b""
        self._fields: list[bytes] = []

    @property
    def held(self) -> bool:
        """Whether the body must wait for a 100: it is too large, or of unknown length, to be sent twice."""
        return self.body.chunked or (self.length is not None and self.length > KEPT_BODY)

    @property
    def missing(self) -> int | None:
        """Bytes of the body that have not arrived; None where nobody knows."""
        if self.complete:
            return 0
        return None if self.length is None else self.length - self.body.received

    def head(self, hop: bytes) -> bytes:
        """The head as a replica gets it."""
        ask = b"" if self.expects or not self.held else EXPECT + b": 1\r\nexpect: 100-continue\r\n"
        line = b"%b %b HTTP/1.1\r\n%b: %b\r\n" % (self.method, self._target, HOP, hop)
        return b"".join((line, self._trace, ask, *self._fields, b"\r\n"))

    def read_target(self, url: bytes, host: bytes | None) -> None:
        """Understand the request target in the forms of RFC 9112, 3.2; CONNECT's never comes here."""
        if not url.isascii():
            raise BadRequest("the request target is not ASCII")
        if url[:1] != b"/" and not (url == b"*" and self.method == b"OPTIONS"):
            url = _origin_form(url, host)
        self._target = url.partition(b"#")[0]
        self.raw_path = self._target.partition(b"?")[0]
        try:
            path: str = parse_url(self._target).path.decode("ascii")
        except HttpParserError:
            raise BadRequest("the request target is not a URL") from None
        # As the replica's server does it, so that both see the same path.
        self.path = unquote(path) if "%" in path else path

    def read_fields(self, fields: list[Header], believed: bool) -> bytes | None:
        """Check and copy the fields; gives the host. `believed`: the client is a proxy that tells the truth."""
        host: bytes | None = None
        traced: list[Header] | None = None
        copied = self._fields
        for name, value in fields:
            look = LOOK.get(name, COPY)
            if look == COPY:
                # An app server may take `_` for `-`; no name of ours passes in either spelling, and none that tells
                # of a client from who is not believed.
                if name[0] == 120:
                    spelt = name.replace(b"_", b"-")
                    if spelt.startswith(INTERNAL_PREFIX) or (not believed and forwarded.tells_of_a_client(spelt)):
                        continue
                copied.append(b"%b: %b\r\n" % (name, value))
            elif look == HOST:
                if host is not None:
                    raise BadRequest("the request has two Host fields")
                if not _is_host(value):
                    raise BadRequest("the Host field is not a host")
                host = value
                copied.append(b"host: %b\r\n" % value)
            elif look == LENGTH:
                self.length = int(value)
                copied.append(b"content-length: %d\r\n" % self.length)
            elif look == CODING:
                self._read_coding(value)
            elif look == CONNECTION:
                # Apps see it under a plain server. It changes nothing on the hop.
                if value.lower() == b"keep-alive":
                    copied.append(b"connection: %b\r\n" % value)
            elif look == REQUEST_ID:
                if self.id is None and REQUEST_ID_GRAMMAR.fullmatch(value) is not None:
                    self.id = value
                    copied.append(b"x-request-id: %b\r\n" % value)
            elif look == TIMEOUT_S:
                self.timeout = value if self.timeout is None else self.timeout + b", " + value
                copied.append(b"%b: %b\r\n" % (TIMEOUT_FIELD, value))
            elif look == TRACED:
                traced = [*(traced or ()), (name, value)]
                copied.append(b"%b: %b\r\n" % (name, value))
            elif look == FORWARDED:
                if believed:
                    self.forwarded.append((name, value))
                    copied.append(b"%b: %b\r\n" % (name, value))
            elif look == EXPECTATION:
                self.expects = self.version == "1.1" and value.lower() == b"100-continue"
        if host is None and self.version == "1.1":
            raise BadRequest("the request has no Host field")
        if traced is not None and (trace := trace_of(traced)) is not None:
            self._trace = b"%b: %b\r\n" % (TRACE, trace.encode())
        self._end_fields()
        return host

    def _read_coding(self, value: bytes) -> None:
        if self.version != "1.1":
            raise BadRequest("HTTP/1.0 has no transfer codings")
        if self.body.chunked or value.strip().lower() != b"chunked":
            raise NotSupported(f"the transfer coding is {value[:40]!r}, spoken here is one 'chunked'")
        self.body.chunked = True

    def _end_fields(self) -> None:
        if self.body.chunked:
            if self.length is not None:
                raise BadRequest("the request has a Content-Length and a transfer coding")
            self._fields.append(b"transfer-encoding: chunked\r\n")
        elif not self.length:
            self.expects = False
        if self.expects:
            self._fields.append(b"expect: 100-continue\r\n")

    def check_body(self, most: int, name: str) -> None:
        """Raises `ContentTooLarge` if the body is announced, or has come, with more than `most` bytes."""
        if max(self.length or 0, self.body.received) > most:
            has = f"{self.length} bytes" if self.length is not None else f"{self.body.received} bytes or more"
            raise ContentTooLarge(f"the body has {has}, the max_body_size of {name} is {most}")

    def become_websocket(self) -> None:
        """Whatever follows the head now belongs to the tunnel."""
        self.websocket = True
        self.keep_alive = False
        self._fields.append(b"connection: Upgrade\r\nupgrade: websocket\r\n")


class RequestParser:
    """Turns what one client sends into requests, in order.

    * It never raises for what a client sent: what is refused becomes a last request with a `refusal`.
    * The parser below cannot be stopped within a `feed`: not more than `appetite` bytes are fed at a time.
    """

    def __init__(self, limits: HeadLimits, believed: bool = False) -> None:
        """`believed`: forwarded fields are passed on, and told; else they are dropped."""
        self.limits = limits
        self.believed = believed
        #: Heads that are complete, in order; whoever begins one takes it out.
        #: A list: an empty deque is larger than all else that an idle client costs here.
        self.requests: list[Request] = []
        #: The one whose body is arriving.
        self.request: Request | None = None
        self.in_head = False
        self.refused = False
        self._head_bytes = 0
        #: Bytes since the last one of a body: chunk extensions and trailers.
        self._framing_bytes = 0
        self._url = b""
        self._fields: list[Header] = []
        self._instead: bytes | None = None
        self._parser: HttpRequestParser | None = self._new_parser()

    def _new_parser(self) -> HttpRequestParser:
        parser = HttpRequestParser(self)
        # Without this a request behind one with `connection: close` would cost that one its answer.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    @property
    def appetite(self) -> int:
        """Bytes to feed at once."""
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
            # The parser below holds a trailer until it is complete, and its length is nobody's business but ours.
            self._framing_bytes = 0 if request.body.received > received else self._framing_bytes + len(data)
            if self._framing_bytes > self.limits.head_bytes:
                most = self.limits.head_bytes
                self.refuse(HeadTooLarge(f"the trailers, or what else is no body, are longer than {most} bytes"))

    def refuse(self, error: RequestError) -> None:
        """Read nothing from here on: the request that is arriving carries the error, or one of its own."""
        self.refused = True
        request = self.request
        if request is None or request.complete:
            request = Request(b"-", "1.1")
            request.raw_path = self._url[:200]
            self.requests.append(request)
        request.refusal = error
        self.in_head = False

    def close(self) -> None:
        """The client is gone."""
        self._parser = None
        self.requests.clear()
        self.request = None
        self.in_head = False

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._after_upgrade(data[upgrade.args[0] :])
        except HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, RequestError):
                log.error("the request parser failed", exc_info=cause)
                cause = RequestError("the proxy failed while it read the request")
            self.refuse(cause)
        except HttpParserError as error:
            self.refuse(BadRequest(f"this is not HTTP: {error}"))

    def _after_upgrade(self, rest: bytes) -> None:
        """The tunnel's first bytes; or, where the upgrade is not ours, all is parsed again without it."""
        instead, self._instead = self._instead, None
        if instead is not None:
            self._parser = self._new_parser()
            self._parse(instead + rest)
        elif rest and self.request is not None:
            self.request.body.append(rest)

    # What the parser says

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
            raise VersionNotSupported(f"the version is HTTP/{version}, spoken here are 1.1 and 1.0")
        if method not in METHODS:
            raise NotSupported(f"the method {method.decode('latin-1')} is not spoken here")
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
                raise BadRequest("a websocket is asked for with a bodyless GET of HTTP/1.1")
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
        request.body.end()
        request.complete = True
        # A `connection: close` among the trailers: the parser reads nothing after it either.
        request.keep_alive = request.keep_alive and self._parser is not None and self._parser.should_keep_alive()
        self.request = None

    def _check_head(self) -> None:
        """To the byte: what was fed last may hold more than the end of the head."""
        size = len(self._url) + sum(len(name) + len(value) for name, value in self._fields)
        if size > self.limits.head_bytes:
            raise self._head_too_large()

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the head is longer than {self.limits.head_bytes} bytes")


@lru_cache(1_024)
def _is_host(value: bytes) -> bool:
    """Whether it can be made part of a URL; where it cannot, an app that tries would answer 500."""
    found = HOST_GRAMMAR.fullmatch(value)
    if found is None:
        return False
    address, port = found.groups()
    if address is not None:
        try:
            ipaddress.IPv6Address(address.decode())
        except ValueError:
            return False
    return not port or int(port) <= 65_535


def _origin_form(url: bytes, host: bytes | None) -> bytes:
    """What an absolute-form target means. Its authority must be the Host field's."""
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
    asked = [value.strip().lower() for name, value in fields if name == b"upgrade"]
    if asked == [b"websocket"]:
        return True
    if any(b"websocket" in protocol for protocol in asked):
        raise BadRequest("a websocket is asked for together with other protocols")
    return False


def _without_upgrade(method: bytes, url: bytes, version: str, fields: list[Header]) -> bytes:
    """The same head without the upgrade, for a parser that will then read the body."""
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
