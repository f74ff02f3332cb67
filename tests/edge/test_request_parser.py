"""Requests out of bytes, without a connection: however the bytes are cut, the requests are the same."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.edge.request_parser import Body, HeadLimits, Request, RequestParser
from app_toolkit.errors import NotSupported
from app_toolkit.exchange.request import KEPT_BODY

STREAM = (
    b"GET /a?b=1 HTTP/1.1\r\nHost: x\r\nX: 1\r\n\r\n"
    b"\r\nPOST /b HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
    b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2;e=1\r\nde\r\n0\r\nx-t: 1\r\n\r\n"
    b"POST /d HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi"
    b"GET /e HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n\x81\x00frames"
)


def parse(pieces: list[bytes]) -> list[Request]:
    parser = RequestParser(HeadLimits())
    for piece in pieces:
        parser.feed(piece)
    return list(parser.requests)


def described(request: Request) -> tuple[object, ...]:
    body = b"".join(request.body.take())
    if request.body.chunked:  # its framing follows the pieces in which it came
        body = body.replace(b"\r\n", b"").translate(None, b"0123456789")
    return (request.head(b"hop"), request.path, body, request.complete, request.keep_alive, request.error)


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
@settings(max_examples=300)
def test_the_requests_do_not_depend_on_how_their_bytes_are_cut(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(bounds) if a < b]
    assert [described(request) for request in parse(pieces)] == [described(request) for request in parse([STREAM])]


def test_the_heads_are_as_a_replica_gets_them() -> None:
    a, b, c, d, e = parse([STREAM])
    assert a.head(b"H") == b"GET /a?b=1 HTTP/1.1\r\nx-app-toolkit-hop: H\r\nhost: x\r\nx: 1\r\n\r\n"
    assert b.head(b"H") == b"POST /b HTTP/1.1\r\nx-app-toolkit-hop: H\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
    assert c.head(b"H") == (
        b"POST /c HTTP/1.1\r\nx-app-toolkit-hop: H\r\nx-app-toolkit-expect: 1\r\nexpect: 100-continue\r\n"
        b"host: x\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    assert d.head(b"H") == b"POST /d HTTP/1.1\r\nx-app-toolkit-hop: H\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
    assert e.head(b"H") == (
        b"GET /e HTTP/1.1\r\nx-app-toolkit-hop: H\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    )
    assert (e.websocket, e.complete, e.body.take()) == (True, False, [b"\x81\x00frames"])


def test_replica_gets_the_first_shard_key_of_the_client_and_no_internal_field_of_it() -> None:
    fields = b"x-app-toolkit-shard-key: forged\r\nX-SERVE-SHARD-KEY: user 7\r\nx-serve-shard-key: second\r\n"
    (request,) = parse([b"GET / HTTP/1.1\r\nhost: x\r\nx-serve-shard-key: \r\n%b\r\n" % fields])
    assert request.shard_key == "user 7"
    assert request.head(b"H") == (
        b"GET / HTTP/1.1\r\nx-app-toolkit-hop: H\r\nx-app-toolkit-shard-key: user%207\r\nhost: x\r\n"
        b"x-serve-shard-key: \r\nx-serve-shard-key: user 7\r\nx-serve-shard-key: second\r\n\r\n"
    )


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, chunked", b"identity", b'"chunked"'])
def test_an_upgrade_with_an_unsupported_coding_is_refused_as_not_supported(coding: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: %b\r\n\r\n"
    (request,) = parse([head % coding])
    assert isinstance(request.error, NotSupported)
    assert request.error.status == 501


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_no_bytes_make_the_parser_raise(data: bytes) -> None:
    parse([data])
    parse([b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", data])


def test_a_body_is_sent_again_from_its_first_byte_while_it_is_held() -> None:
    body = Body(chunked=False)
    body.append(b"a" * KEPT_BODY)
    assert body.take() == [b"a" * KEPT_BODY]
    assert body.take() == []
    body.rewind()
    assert body.waiting == KEPT_BODY
    assert body.take() == [b"a" * KEPT_BODY]
    body.append(b"b")
    assert body.take() == [b"b"]
    assert not body.retained


def test_a_discarded_body_is_only_counted() -> None:
    body = Body(chunked=True)
    body.append(b"abc")
    body.discard()
    body.append(b"def")
    body.end()
    assert (body.received, body.waiting, body.take()) == (6, 0, [])
