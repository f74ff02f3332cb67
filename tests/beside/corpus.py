"""Raw requests, as bytes, and the right result of each at the proxy.

The path `/smuggled` stands in bytes that are somebody's body: whoever runs it has made two requests out of one. The
path `/behind` stands behind what must end the connection.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["malformed", "smuggling", "limits", "versions", "legal"]
End = Literal["closed", "open", "tunnel"]

GET = b"GET /a HTTP/1.1\r\nhost: a\r\n"
POST = b"POST /a HTTP/1.1\r\nhost: a\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n"
UPGRADE = b"connection: Upgrade\r\nupgrade: "
KEY = b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
END = b"\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
HIDDEN = b"content-length: %d\r\n\r\n" % len(SMUGGLED)
"""The end of a head whose body is `SMUGGLED`."""

TWICE = b"0\r\n\r\n" + SMUGGLED
"""A body to one who counts, and a body and a request to one who reads chunks."""

BEHIND = b"GET /behind HTTP/1.1\r\nhost: a\r\n\r\n"


@dataclass(frozen=True)
class Entry:
    """What is sent, and what must come of it."""

    name: str
    kind: Kind
    segments: tuple[bytes, ...]
    #: For each final answer, in order, the statuses that are right.
    answers: tuple[tuple[int, ...], ...]
    #: What the connection is after the last of them.
    end: End
    #: The app's ledger: all that it ran.
    ran: tuple[str, ...]
    #: Whether it may have begun one more, whose body then broke off.
    may_begin: bool = False

    @property
    def method(self) -> str:
        return "HEAD" if self.segments[0].startswith(b"HEAD ") else "GET"


CORPUS: list[Entry] = []


def refused(
    name: str, kind: Kind, *segments: bytes, status: int | tuple[int, ...] = 400, may_begin: bool = False
) -> None:
    """One answer, nothing run, and the end."""
    statuses = status if isinstance(status, tuple) else (status,)
    CORPUS.append(Entry(name, kind, segments, (statuses,), "closed", (), may_begin))


def served(
    name: str,
    kind: Kind,
    *segments: bytes,
    ran: tuple[str, ...] = ("GET /a 0",),
    answers: tuple[int, ...] = (200,),
    end: End = "open",
) -> None:
    CORPUS.append(Entry(name, kind, segments, tuple((status,) for status in answers), end, ran))


# The request line

refused("nonsense", "malformed", b"nonsense\r\n\r\n" + BEHIND)
refused("binary, as of TLS", "malformed", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 32 + b"\r\n\r\n")
refused("no version", "malformed", b"GET /a\r\nhost: a\r\n\r\n", status=505)
served("two spaces before the version", "legal", b"GET /a  HTTP/1.1\r\nhost: a\r\n\r\n")
refused("a tab for a space", "malformed", b"GET\t/a\tHTTP/1.1\r\nhost: a\r\n\r\n")
refused("a space in the target", "malformed", b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n")
refused("a space before the method", "malformed", b" GET /a HTTP/1.1\r\nhost: a\r\n\r\n")
refused("a NUL in the target", "malformed", b"GET /a\x00b HTTP/1.1\r\nhost: a\r\n\r\n")
refused("a bare CR in the target", "malformed", b"GET /a\rb HTTP/1.1\r\nhost: a\r\n\r\n")
refused("a target that is not ASCII", "malformed", b"GET /\xc3\xa9 HTTP/1.1\r\nhost: a\r\n\r\n")
refused("a target without a slash", "malformed", b"GET a HTTP/1.1\r\nhost: a\r\n\r\n")
refused("an empty target", "malformed", b"GET  HTTP/1.1\r\nhost: a\r\n\r\n")
refused("a star for GET", "malformed", b"GET * HTTP/1.1\r\nhost: a\r\n\r\n")
refused("another authority", "malformed", b"GET http://b/a HTTP/1.1\r\nhost: a\r\n\r\n")
refused("another port", "malformed", b"GET http://a:81/a HTTP/1.1\r\nhost: a\r\n\r\n")
refused("another scheme", "malformed", b"GET ftp://a/a HTTP/1.1\r\nhost: a\r\n\r\n")
refused("a user in the target", "malformed", b"GET http://u@a/a HTTP/1.1\r\nhost: a\r\n\r\n")
refused("CONNECT", "malformed", b"CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n" + BEHIND, status=501)
refused("a method of WebDAV", "malformed", b"PROPFIND /a HTTP/1.1\r\nhost: a\r\n\r\n", status=501)
refused("a method of another protocol", "malformed", b"SOURCE /a HTTP/1.1\r\nhost: a\r\n\r\n", status=501)
refused("a method that is none", "malformed", b"FOO /a HTTP/1.1\r\nhost: a\r\n\r\n", status=(400, 501))
refused("a method in small letters", "malformed", b"get /a HTTP/1.1\r\nhost: a\r\n\r\n", status=(400, 501))

# Versions

refused("HTTP/0.9 without a version", "versions", b"GET /a\r\n\r\n", status=505)
refused("HTTP/0.9", "versions", b"GET /a HTTP/0.9\r\nhost: a\r\n\r\n", status=505)
refused("HTTP/1.2", "versions", b"GET /a HTTP/1.2\r\nhost: a\r\n\r\n", status=(400, 505))
refused("HTTP/2.0", "versions", b"GET /a HTTP/2.0\r\nhost: a\r\n\r\n", status=505)
refused("HTTP/1.10", "versions", b"GET /a HTTP/1.10\r\nhost: a\r\n\r\n", status=(400, 505))
refused("http/1.1 in small letters", "versions", b"GET /a http/1.1\r\nhost: a\r\n\r\n")
refused("the preface of HTTP/2", "versions", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", status=(400, 501, 505))
refused("RTSP", "versions", b"PLAY /a RTSP/1.0\r\nhost: a\r\n\r\n", status=(400, 501))
# The parser below tells no difference: it is HTTP/1.0, and the end of its connection.
served("GET of RTSP", "versions", b"GET /a RTSP/1.0\r\nhost: a\r\n\r\n" + BEHIND, end="closed")
refused("ICE", "versions", b"SOURCE /a ICE/1.0\r\nhost: a\r\n\r\n", status=(400, 501))
served("HTTP/1.0", "versions", b"GET /a HTTP/1.0\r\n\r\n", end="closed")
served("HTTP/1.0 that wants to stay", "versions", b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", end="closed")

# Fields

refused("no host", "malformed", b"GET /a HTTP/1.1\r\n\r\n")
refused("two hosts", "malformed", GET + b"host: b\r\n\r\n")
refused("the same host twice", "malformed", GET + b"host: a\r\n\r\n")
refused("a host with a path", "malformed", b"GET /a HTTP/1.1\r\nhost: a/b\r\n\r\n")
refused("a host with a user", "malformed", b"GET /a HTTP/1.1\r\nhost: u@a\r\n\r\n")
refused("a host with a space", "malformed", b"GET /a HTTP/1.1\r\nhost: a b\r\n\r\n")
refused("a host that is not ASCII", "malformed", b"GET /a HTTP/1.1\r\nhost: \xe9\r\n\r\n")
refused("a list of hosts", "malformed", b"GET /a HTTP/1.1\r\nhost: a, b\r\n\r\n")
refused("a host with a bracket", "malformed", b"GET /a HTTP/1.1\r\nhost: [\r\n\r\n")
refused("a host in brackets that is no address", "malformed", b"GET /a HTTP/1.1\r\nhost: [::1::2]\r\n\r\n")
refused("a host with two ports", "malformed", b"GET /a HTTP/1.1\r\nhost: a:1:2\r\n\r\n")
refused("a host whose port is a word", "malformed", b"GET /a HTTP/1.1\r\nhost: a:b\r\n\r\n")
refused("a host whose port is too large", "malformed", b"GET /a HTTP/1.1\r\nhost: a:65536\r\n\r\n")
refused("a folded field", "malformed", GET + b"x: 1\r\n 2\r\n\r\n")
refused("a folded first field", "malformed", b"GET /a HTTP/1.1\r\n host: a\r\n\r\n")
refused("bare line feeds", "malformed", b"GET /a HTTP/1.1\nhost: a\n\n" + BEHIND)
refused("a bare line feed within", "malformed", b"GET /a HTTP/1.1\r\nhost: a\nx: 1\r\n\r\n")
refused("a bare carriage return within", "malformed", GET + b"x: 1\ry: 2\r\n\r\n")
refused("a bare carriage return at the end", "malformed", GET + b"x: 1\r\r\n\r\n")
refused("a space before the colon", "malformed", b"GET /a HTTP/1.1\r\nhost : a\r\n\r\n")
refused("a field without a colon", "malformed", GET + b"x\r\n\r\n")
refused("a field without a name", "malformed", GET + b": x\r\n\r\n")
refused("a NUL in a value", "malformed", GET + b"x: \x00\r\n\r\n")
refused("a NUL in a name", "malformed", GET + b"x\x00: 1\r\n\r\n")
refused("a control character in a value", "malformed", GET + b"x: \x01\r\n\r\n")
refused("a DEL in a value", "malformed", GET + b"x: \x7f\r\n\r\n")
refused("a name that is not ASCII", "malformed", GET + b"x\xe9: 1\r\n\r\n")
served("a value that is not ASCII", "legal", GET + b"x: \xff\xe9\x80\r\n\r\n")
served("a tab in a value", "legal", GET + b"x: a\tb\r\n\r\n")
served("an empty value", "legal", GET + b"x:\r\n\r\n")
served("a cookie that is not ASCII", "legal", GET + b"cookie: a=\xff; b\r\n\r\n")
served("an underscore in a name", "legal", GET + b"x_y: 1\r\n\r\n")

# Where a body ends

refused(
    "length, then coding",
    "smuggling",
    POST + b"content-length: %d\r\n" % len(TWICE) + b"transfer-encoding: chunked\r\n\r\n" + TWICE,
)
refused("coding, then length", "smuggling", CHUNKED + b"content-length: %d\r\n\r\n" % len(TWICE) + TWICE)
refused("coding, and no length's worth", "smuggling", CHUNKED + HIDDEN + SMUGGLED)
refused("two lengths", "smuggling", POST + b"content-length: 0\r\n" + HIDDEN + SMUGGLED)
refused("the same length twice", "smuggling", POST + b"content-length: %d\r\n" % len(SMUGGLED) + HIDDEN + SMUGGLED)
refused("a list of lengths", "smuggling", POST + b"content-length: 5, 5\r\n\r\nhello" + BEHIND)
refused("a length with a plus", "smuggling", POST + b"content-length: +5\r\n\r\nhello" + BEHIND)
refused("a length with a minus", "smuggling", POST + b"content-length: -5\r\n\r\nhello" + BEHIND)
refused("a length in hexadecimal", "smuggling", POST + b"content-length: 0x5\r\n\r\nhello" + BEHIND)
refused("a length with an underscore", "smuggling", POST + b"content-length: 1_0\r\n\r\nhellohello" + BEHIND)
refused("a length with a space within", "smuggling", POST + b"content-length: 1 0\r\n\r\nhellohello" + BEHIND)
refused("a fraction of a length", "smuggling", POST + b"content-length: 5.0\r\n\r\nhello" + BEHIND)
refused("an empty length", "smuggling", POST + b"content-length: \r\n\r\n" + BEHIND)
refused("a length beyond 64 bits", "smuggling", POST + b"content-length: 18446744073709551621\r\n\r\nhello" + BEHIND)
refused("a length of Arabic digits", "smuggling", POST + b"content-length: \xd9\xa5\r\n\r\nhello" + BEHIND)
refused("a length with a space before its colon", "smuggling", POST + b"content-length : 5\r\n\r\nhello" + BEHIND)
refused(
    "a coding with a tab before its colon",
    "smuggling",
    POST + b"transfer-encoding\t: chunked\r\n\r\n0\r\n\r\n" + BEHIND,
)
refused("a folded coding", "smuggling", POST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + BEHIND)
refused(
    "a misspelt coding", "smuggling", POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + BEHIND, status=(400, 501)
)
refused(
    "a coding in quotes",
    "smuggling",
    POST + b'transfer-encoding: "chunked"\r\n\r\n0\r\n\r\n' + BEHIND,
    status=(400, 501),
)
refused("identity", "smuggling", POST + b"transfer-encoding: identity\r\n" + HIDDEN + SMUGGLED, status=(400, 501))
refused("an empty coding", "smuggling", POST + b"transfer-encoding:\r\n" + HIDDEN + SMUGGLED, status=(400, 501))
refused(
    "chunked twice",
    "smuggling",
    POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + BEHIND,
    status=(400, 501),
)
refused(
    "two codings", "smuggling", CHUNKED + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + BEHIND, status=(400, 501)
)
refused(
    "chunked, then identity",
    "smuggling",
    CHUNKED + b"transfer-encoding: identity\r\n\r\n0\r\n\r\n" + BEHIND,
    status=(400, 501),
)
refused(
    "gzip and chunked", "smuggling", POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + BEHIND, status=501
)
refused(
    "chunked, then gzip",
    "smuggling",
    POST + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n" + BEHIND,
    status=(400, 501),
)
refused(
    "a parameter of chunked",
    "smuggling",
    POST + b"transfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n" + BEHIND,
    status=(400, 501),
)
refused(
    "a vertical tab before chunked", "smuggling", POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + BEHIND
)
refused(
    "a coding in HTTP/1.0",
    "smuggling",
    b"POST /a HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + BEHIND,
)
served("a length with zeros", "legal", POST + b"content-length: 005 \r\n\r\nhello", ran=("POST /a 5",))
served("chunked in capital letters", "legal", POST + b"Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", ran=("POST /a 0",))
served(
    "chunked with more space", "legal", POST + b"transfer-encoding:  \t chunked \r\n\r\n0\r\n\r\n", ran=("POST /a 0",)
)
served("GET with a body", "legal", GET + HIDDEN + SMUGGLED, ran=(f"GET /a {len(SMUGGLED)}",))
served(
    "GET with chunks", "legal", GET + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", ran=("GET /a 5",)
)
served("a request within a body", "legal", POST + HIDDEN, SMUGGLED, ran=(f"POST /a {len(SMUGGLED)}",))
served(
    "a connection that names the length",
    "smuggling",
    POST + b"connection: content-length\r\n" + HIDDEN + SMUGGLED,
    ran=(f"POST /a {len(SMUGGLED)}",),
)

# Chunks

for _name, _chunks in {
    "0x before a chunk's size": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a minus before a chunk's size": b"-1\r\n\r\n",
    "a plus before a chunk's size": b"+5\r\nhello\r\n0\r\n\r\n",
    "a space behind a chunk's size": b"5 \r\nhello\r\n0\r\n\r\n",
    "no chunk's size": b"\r\nhello\r\n0\r\n\r\n",
    "a chunk's size that is none": b"hello\r\n",
    "a chunk's size beyond 64 bits": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "a chunk that is longer than it says": b"5\r\nhelloXX0\r\n\r\n",
    "a chunk without its line end": b"5\r\nhello0\r\n\r\n",
    "line feeds alone around chunks": b"5\nhello\n0\n\n",
    "a line feed behind a chunk": b"5\r\nhello\n0\r\n\r\n",
    "a bare CR behind a chunk's size": b"5\rXhello\r\n0\r\n\r\n",
    "a line feed in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "a trailer that is no field": b"0\r\nnonsense\r\n\r\n",
    "a folded trailer": b"0\r\nx: 1\r\n 2\r\n\r\n",
    "a line feed at the end of trailers": b"0\r\n\n",
}.items():
    refused(_name, "smuggling", CHUNKED + END + _chunks + BEHIND, may_begin=True)
served("a chunk's extension", "legal", CHUNKED + END + b'5;a=1;b="c;d"\r\nhello\r\n0;e\r\n\r\n', ran=("POST /a 5",))
served("zeros before a chunk's size", "legal", CHUNKED + END + b"0005\r\nhello\r\n000\r\n\r\n", ran=("POST /a 5",))
served("a trailer", "legal", CHUNKED + b"trailer: x\r\n\r\n5\r\nhello\r\n0\r\nx: 1\r\n\r\n", ran=("POST /a 5",))
served("a host in a trailer", "smuggling", CHUNKED + END + b"0\r\nhost: b\r\n\r\n", ran=("POST /a 0",))
served(
    "an upgrade in a trailer",
    "smuggling",
    CHUNKED + END + b"0\r\n" + UPGRADE + b"websocket\r\n\r\n",
    ran=("POST /a 0",),
)
served(
    "connection: close in a trailer",
    "smuggling",
    CHUNKED + END + b"0\r\nconnection: close\r\n\r\n" + BEHIND,
    ran=("POST /a 0",),
    end="closed",
)
refused("a length in a trailer", "smuggling", CHUNKED + END + b"0\r\n" + HIDDEN + SMUGGLED, may_begin=True)
refused(
    "a coding in a trailer",
    "smuggling",
    CHUNKED + END + b"0\r\ntransfer-encoding: chunked\r\n\r\n" + BEHIND,
    may_begin=True,
)
served(
    "a field of ours in a trailer",
    "smuggling",
    CHUNKED + END + b"0\r\nx-app-toolkit-hop: 1 s i 1.1 6.6.6.6 1 7.7.7.7 2 https\r\n\r\n",
    ran=("POST /a 0",),
)

# Fields of ours

served("a field of ours", "smuggling", GET + b"x-app-toolkit-hop: 1 s i 1.1 6.6.6.6 1 7.7.7.7 2 https\r\n\r\n")
served(
    "a field of ours with underscores",
    "smuggling",
    GET + b"x_app_toolkit_hop: 1\r\nX-App_Toolkit-Refused: busy\r\n\r\n",
)
served(
    "every field of ours",
    "smuggling",
    GET + b"x-app-toolkit-expect: 1\r\nx-app-toolkit-ongoing: 9\r\nx-app-toolkit-refused: busy\r\n\r\n",
)
served("a field of ours that the connection names", "smuggling", GET + b"connection: x-app-toolkit-hop\r\n\r\n")

# Upgrades

served("h2c", "legal", GET + UPGRADE + b"h2c\r\nhttp2-settings: AA\r\n\r\n")
served(
    "h2c with a body in one segment",
    "smuggling",
    POST + UPGRADE + b"h2c\r\n" + HIDDEN + SMUGGLED,
    ran=(f"POST /a {len(SMUGGLED)}",),
)
served(
    "h2c with a body in two segments",
    "smuggling",
    POST + UPGRADE + b"h2c\r\n" + HIDDEN,
    SMUGGLED,
    ran=(f"POST /a {len(SMUGGLED)}",),
)
served(
    "h2c with chunks",
    "smuggling",
    CHUNKED + UPGRADE + b"h2c\r\n\r\n",
    b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED),
    ran=(f"POST /a {len(SMUGGLED)}",),
)
served(
    "h2c with a request behind it",
    "legal",
    GET + UPGRADE + b"h2c\r\n\r\n" + GET + END,
    ran=("GET /a 0", "GET /a 0"),
    answers=(200, 200),
)
refused(
    "h2c with another coding",
    "smuggling",
    POST + UPGRADE + b"h2c\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    status=501,
)
refused("h2c with a length and a coding", "smuggling", CHUNKED + UPGRADE + b"h2c\r\n" + HIDDEN + SMUGGLED)
served(
    "an upgrade to nothing known",
    "smuggling",
    POST + UPGRADE + b"x\r\n" + HIDDEN + SMUGGLED,
    ran=(f"POST /a {len(SMUGGLED)}",),
)
served(
    "an upgrade that the connection does not name",
    "smuggling",
    POST + b"upgrade: websocket\r\n" + HIDDEN + SMUGGLED,
    ran=(f"POST /a {len(SMUGGLED)}",),
)
served(
    "a connection that names an upgrade to nothing",
    "smuggling",
    POST + b"connection: upgrade\r\n" + HIDDEN + SMUGGLED,
    ran=(f"POST /a {len(SMUGGLED)}",),
)
refused("a websocket by POST", "smuggling", POST + UPGRADE + b"websocket\r\n" + KEY + HIDDEN, SMUGGLED)
refused("a websocket with a body", "smuggling", GET + UPGRADE + b"websocket\r\n" + KEY + HIDDEN, SMUGGLED)
refused(
    "a websocket with chunks",
    "smuggling",
    GET + UPGRADE + b"websocket\r\ntransfer-encoding: chunked\r\n" + KEY + END,
    SMUGGLED,
)
refused(
    "a websocket of HTTP/1.0", "smuggling", b"GET /a HTTP/1.0\r\nhost: a\r\n" + UPGRADE + b"websocket\r\n" + KEY + END
)
refused("a websocket among others", "smuggling", GET + UPGRADE + b"h2c, websocket\r\n" + KEY + END)
refused("two upgrades", "smuggling", GET + UPGRADE + b"h2c\r\nupgrade: websocket\r\n" + KEY + END)
refused("a websocket without a key", "malformed", GET + UPGRADE + b"websocket\r\nsec-websocket-version: 13\r\n\r\n")
served(
    "a websocket",
    "legal",
    GET + UPGRADE + b"websocket\r\n" + KEY + END,
    ran=("WEBSOCKET /a",),
    answers=(101,),
    end="tunnel",
)
served(
    "a websocket with a request behind it",
    "smuggling",
    GET + UPGRADE + b"websocket\r\n" + KEY + END + SMUGGLED,
    ran=("WEBSOCKET /a",),
    answers=(101,),
    end="tunnel",
)

# Several requests

CORPUS.append(
    Entry(
        "a good one, then a bad one",
        "malformed",
        (GET + END + b"nonsense\r\n\r\n" + BEHIND,),
        ((200,), (400,)),
        "closed",
        ("GET /a 0",),
    )
)
CORPUS.append(
    Entry(
        "a good body, then a bad one",
        "smuggling",
        (POST + b"content-length: 5\r\n\r\nhello" + CHUNKED + b"content-length: 5\r\n\r\n0\r\n\r\n" + BEHIND,),
        ((200,), (400,)),
        "closed",
        ("POST /a 5",),
    )
)
served("a thousand", "limits", (GET + END) * 1_000, ran=("GET /a 0",) * 1_000, answers=(200,) * 1_000)
served("behind connection: close", "smuggling", GET + b"connection: close\r\n\r\n" + BEHIND, end="closed")
served("behind HTTP/1.0", "smuggling", b"GET /a HTTP/1.0\r\n\r\n" + BEHIND, end="closed")
served("close and keep-alive", "smuggling", GET + b"connection: keep-alive, close\r\n\r\n" + BEHIND, end="closed")
served("empty lines before", "legal", b"\r\n\r\n" + GET + END)
served(
    "an empty line behind a body",
    "legal",
    POST + b"content-length: 5\r\n\r\nhello\r\n" + GET + END,
    ran=("POST /a 5", "GET /a 0"),
    answers=(200, 200),
)
served("HEAD and then GET", "legal", b"HEAD /a HTTP/1.1\r\nhost: a\r\n\r\n", ran=("HEAD /a 0",))

# Expectations

served(
    "100-continue", "legal", POST + b"expect: 100-continue\r\ncontent-length: 5\r\n\r\n", b"hello", ran=("POST /a 5",)
)
served(
    "100-continue with its body at once",
    "legal",
    POST + b"expect: 100-continue\r\ncontent-length: 5\r\n\r\nhello",
    ran=("POST /a 5",),
)
served("100-continue without a body", "legal", GET + b"expect: 100-continue\r\n\r\n")
served(
    "100-continue with chunks",
    "legal",
    CHUNKED + b"expect: 100-continue\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    ran=("POST /a 5",),
)
served(
    "100-continue in HTTP/1.0",
    "legal",
    b"POST /a HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\nhello",
    ran=("POST /a 5",),
    end="closed",
)
served("another expectation", "legal", POST + b"expect: 200-ok\r\ncontent-length: 5\r\n\r\nhello", ran=("POST /a 5",))

# Targets

served("an absolute target", "legal", b"GET http://a/a HTTP/1.1\r\nhost: a\r\n\r\n")
served("an absolute target with its port", "legal", b"GET http://a:80/a HTTP/1.1\r\nhost: a\r\n\r\n")
served("an absolute target in capital letters", "legal", b"GET HTTP://A/a HTTP/1.1\r\nhost: a\r\n\r\n")
served("an absolute target without a path", "legal", b"GET http://a HTTP/1.1\r\nhost: a\r\n\r\n", ran=("GET / 0",))
served("an IPv6 host", "legal", b"GET http://[::1]:80/a HTTP/1.1\r\nhost: [::1]\r\n\r\n")
served("a fragment", "legal", b"GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n")
served("a NUL, percent-encoded", "legal", b"GET /a%00b HTTP/1.1\r\nhost: a\r\n\r\n", ran=("GET /a\x00b 0",))
served(
    "a line end, percent-encoded",
    "legal",
    b"GET /a%0d%0ax:%201 HTTP/1.1\r\nhost: a\r\n\r\n",
    ran=("GET /a\r\nx: 1 0",),
    answers=(404,),
)
served("percent signs that encode nothing", "legal", b"GET /%zz%f HTTP/1.1\r\nhost: a\r\n\r\n", ran=("GET /%zz%f 0",))
served(
    "bytes that are not UTF-8, percent-encoded",
    "legal",
    b"GET /%ff HTTP/1.1\r\nhost: a\r\n\r\n",
    ran=("GET /\ufffd 0",),
)
served("two slashes", "legal", b"GET //b/a HTTP/1.1\r\nhost: a\r\n\r\n", ran=("GET //b/a 0",))
served("dots", "legal", b"GET /a/../b/./c HTTP/1.1\r\nhost: a\r\n\r\n", ran=("GET /a/../b/./c 0",))
served("dots, percent-encoded", "legal", b"GET /a/%2e%2e/b HTTP/1.1\r\nhost: a\r\n\r\n", ran=("GET /a/../b 0",))
served("a slash, percent-encoded", "legal", b"GET /a%2Fb HTTP/1.1\r\nhost: a\r\n\r\n", ran=("GET /a/b 0",))
served("a backslash", "legal", b"GET /a\\b HTTP/1.1\r\nhost: a\r\n\r\n", ran=("GET /a\\b 0",))
served("a query and nothing in it", "legal", b"GET /a? HTTP/1.1\r\nhost: a\r\n\r\n")
served("OPTIONS of everything", "legal", b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", ran=("OPTIONS * 0",), answers=(404,))
served("TRACE", "legal", b"TRACE /a HTTP/1.1\r\nhost: a\r\n\r\n", ran=("TRACE /a 0",))
served("QUERY", "legal", b"QUERY /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello", ran=("QUERY /a 5",))
served("an empty host", "legal", b"GET /a HTTP/1.1\r\nhost:\r\n\r\n")

# Limits

refused("a target of 64 KiB", "limits", b"GET /" + b"u" * 65_536 + b" HTTP/1.1\r\nhost: a\r\n\r\n", status=414)
refused("a target without end", "limits", b"GET /" + b"u" * 65_536, status=414)
refused("101 fields", "limits", GET + b"x: 1\r\n" * 100 + END, status=431)
refused("a head of 65 KiB", "limits", GET + b"x: " + b"v" * 65_536 + b"\r\n\r\n" + BEHIND, status=431)
served("a head of 63 KiB", "limits", GET + b"x: " + b"v" * 64_512 + b"\r\n\r\n")
refused("a value without end", "limits", GET + b"x: " + b"v" * 70_000, status=431)
refused("a name without end", "limits", GET + b"n" * 70_000, status=431)
refused(
    "trailers without end",
    "limits",
    CHUNKED + END + b"5\r\nhello\r\n0\r\n" + b"x: 1\r\n" * 20_000,
    status=431,
    may_begin=True,
)
refused(
    "a trailer without end",
    "limits",
    CHUNKED + END + b"5\r\nhello\r\n0\r\nx: " + b"v" * 100_000,
    status=431,
    may_begin=True,
)
refused("a chunk's extension without end", "limits", CHUNKED + END + b"5;" + b"e" * 100_000, status=431, may_begin=True)
served("100 fields", "limits", GET + b"x: 1\r\n" * 99 + END)
served("a target of 16 KiB", "limits", b"GET /a?" + b"u" * 16_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n")
