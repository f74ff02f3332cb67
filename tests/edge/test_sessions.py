"""Session affinity: requests of one session go to one replica, whichever proxy receives them."""

import re
from collections.abc import Callable

import pytest

from tests import published
from tests.edge.wire import Client, Replica, Wire
from tests.edge.world import Got

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
BEGUN = b"HTTP/1.1 200 OK\r\nmcp-session-id: one\r\ncontent-length: 2\r\n\r\nok"
HEADER = "header:mcp-session-id"


@pytest.fixture
def proxies(new_wire: Callable[..., Wire]) -> list[Wire]:
    """Two proxies with the same replicas, which belong to the last one."""
    return [new_wire(), new_wire()]


def serve(proxies: list[Wire], affinity: str, *replies: bytes, most: int = 100) -> list[Replica]:
    replicas = [proxies[-1].replica(most).says(*(replies or (OK,))) for _ in range(4)]
    for wire in proxies:
        wire.route(*replicas, affinity=affinity)
    return replicas


def ask(client: Client, *fields: str, path: str = "/") -> Got:
    head = "".join(f"{field}\r\n" for field in ("host: shop", *fields))
    return client.send(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode()).response()


def asked(replicas: list[Replica]) -> list[int]:
    return [len(each.received) for each in replicas]


def test_a_header_that_the_client_chose_selects_the_same_replica_at_each_proxy(proxies: list[Wire]) -> None:
    replicas = serve(proxies, "header:x-session")
    for wire in proxies:
        for _ in range(3):
            ask(wire.client(), "x-session: one")
    assert sorted(asked(replicas)) == [0, 0, 0, 6]
    assert [record.affinity for wire in proxies for record in wire.records] == ["kept"] * 6


@pytest.mark.parametrize(
    ("affinity", "field", "path"),
    [
        ("query:sid", "accept: */*", "/socket?x=1&sid=one"),
        ("cookie:session", "cookie: a=b; session=one", "/"),
        ("client", "accept: */*", "/"),
    ],
)
def test_a_key_may_be_elsewhere(proxies: list[Wire], affinity: str, field: str, path: str) -> None:
    replicas = serve(proxies, affinity)
    for wire in proxies:
        for port in range(3):
            client = wire.client(("10.0.0.9", 40_000 + port))
            ask(client, field, path=path)
    assert sorted(asked(replicas)) == [0, 0, 0, 6]


def test_new_sessions_are_spread_over_the_replicas(proxies: list[Wire]) -> None:
    replicas = serve(proxies, HEADER)
    for _ in range(40):
        ask(proxies[0].client())
    assert min(asked(replicas)) >= 5, asked(replicas)
    assert proxies[0].records[0].affinity is None


def test_new_sessions_of_one_connection_are_spread(proxies: list[Wire]) -> None:
    replicas = serve(proxies, HEADER)
    client = proxies[0].client()
    for _ in range(40):
        ask(client)
    assert min(asked(replicas)) >= 5, asked(replicas)


def begin(client: Client) -> str:
    session = ask(client).header("mcp-session-id")
    assert session is not None
    return session


def test_a_session_id_of_the_app_leads_back_to_its_replica_and_reaches_it_unchanged(proxies: list[Wire]) -> None:
    replicas = serve(proxies, HEADER, BEGUN)
    for _ in range(8):
        before = asked(replicas)
        session = begin(proxies[0].client())
        assert session.startswith("one~")
        for wire in proxies:
            assert ask(wire.client(), f"Mcp-Session-Id: {session}").header("mcp-session-id") == session
        added = [after - each for after, each in zip(asked(replicas), before, strict=True)]
        assert sorted(added) == [0, 0, 0, 3]
        assert replicas[added.index(3)].last.header(b"mcp-session-id") == b"one"


def test_a_session_whose_replica_is_gone_gets_the_response_of_another_replica(proxies: list[Wire]) -> None:
    replicas = serve(proxies, HEADER, BEGUN)
    session = begin(proxies[0].client())
    (home,) = [each for each in replicas if each.received]
    others = [each for each in replicas if each is not home]
    for each in others:
        each.says(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
    proxies[0].route(*others, affinity=HEADER)
    for _ in range(3):
        assert ask(proxies[0].client(), f"mcp-session-id: {session}").status == 404
    assert sorted(asked(others)) == [0, 0, 3], "as any other key"
    assert others[asked(others).index(3)].last.header(b"mcp-session-id") == b"one"
    assert proxies[0].records[-1].affinity == "gone"


def two_requests_of_a_session(proxies: list[Wire]) -> tuple[list[Replica], Replica, list[Client]]:
    """All replicas, the one that has the session and runs the first request, and the clients of both requests."""
    replicas = serve(proxies, HEADER, BEGUN, most=1)
    wire = proxies[0]
    session = begin(wire.client())
    (home,) = [each for each in replicas if each.received]
    home.says()
    head = f"GET / HTTP/1.1\r\nhost: shop\r\nmcp-session-id: {session}\r\n\r\n".encode()
    return replicas, home, [wire.client().send(head) for _ in range(2)]


def test_a_session_waits_for_its_full_replica(proxies: list[Wire]) -> None:
    replicas, home, (first, second) = two_requests_of_a_session(proxies)
    assert asked(replicas).count(0) == 3
    assert len(home.received) == 2
    home.last.respond(OK)
    assert first.response().status == 200
    home.last.respond(OK)
    assert second.response().status == 200
    assert len(home.received) == 3


def test_a_waiting_session_goes_to_another_replica_when_its_own_is_gone(proxies: list[Wire]) -> None:
    replicas, home, (_, second) = two_requests_of_a_session(proxies)
    proxies[0].route(*(each for each in replicas if each is not home), affinity=HEADER)
    assert second.response().status == 200


def test_a_key_that_is_hashed_spills_over_when_its_replica_is_full(proxies: list[Wire]) -> None:
    replicas = serve(proxies, "header:x-session", most=1)
    for each in replicas:
        each.says()
    wire = proxies[0]
    for _ in range(3):
        wire.client().send(b"GET / HTTP/1.1\r\nhost: shop\r\nx-session: one\r\n\r\n")
    assert sorted(asked(replicas)) == [0, 1, 1, 1]
    for each in replicas:
        if each.received:
            each.last.respond(OK)
    assert sorted(str(record.affinity) for record in wire.records) == ["kept", "spilled", "spilled"]
    assert wire.proxy.counts()["shop/web"].affinity == {"kept": 1, "spilled": 2}


def test_the_first_key_that_a_request_has_is_used(proxies: list[Wire]) -> None:
    replicas = serve(proxies, "header:x-session, cookie")
    cookie = cookie_of(ask(proxies[0].client()))
    (home,) = [each for each in replicas if each.received]
    ask(proxies[1].client(), f"cookie: {cookie}")
    assert len(home.received) == 2
    for number in range(8):
        ask(proxies[1].client(), f"cookie: {cookie}", f"x-session: {number}")
    assert len(home.received) < 10


NAME = "app-toolkit-session-shop.web"


def cookie_of(got: Got, attributes: str = "; path=/; httponly; samesite=lax") -> str:
    """The cookie that a response sets."""
    header = got.header("set-cookie")
    assert header is not None
    assert re.fullmatch(rf"{NAME}=-~\w{{16}}{attributes}", header)
    return header.removesuffix(attributes)


def test_the_proxys_own_cookie_leads_back_to_the_replica(proxies: list[Wire]) -> None:
    replicas = serve(proxies, "cookie")
    cookie = cookie_of(ask(proxies[0].client()))
    for wire in proxies:
        for _ in range(3):
            assert ask(wire.client(), f"cookie: a=b; {cookie}").header("set-cookie") is None
    assert sorted(asked(replicas)) == [0, 0, 0, 7]


def test_an_id_that_the_client_has_chosen_gets_no_pin(proxies: list[Wire]) -> None:
    serve(proxies, HEADER, BEGUN)
    assert ask(proxies[0].client(), "mcp-session-id: one").header("mcp-session-id") == "one"


def test_a_request_that_waited_for_the_options_of_its_deployment_goes_to_its_replica(proxies: list[Wire]) -> None:
    replicas = serve(proxies, HEADER, BEGUN)
    session = begin(proxies[0].client())
    (home,) = [each for each in replicas if each.received]
    late = proxies[1]
    late.unroute()
    late.publish({"routes": published.routes(published.application())})
    clients = [
        late.client().send(f"GET / HTTP/1.1\r\nhost: shop\r\nmcp-session-id: {session}\r\n\r\n".encode())
        for _ in range(3)
    ]
    late.route(*replicas, affinity=HEADER)
    assert [client.response().status for client in clients] == [200, 200, 200]
    assert len(home.received) == 4
    assert home.last.header(b"mcp-session-id") == b"one"


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncache-control: public, max-age=60\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncache-control: s-maxage=60\r\ncontent-length: 2\r\n\r\nok",
    ],
)
def test_a_response_that_caches_share_sets_no_cookie(proxies: list[Wire], response: bytes) -> None:
    serve(proxies, "cookie", response)
    assert ask(proxies[0].client()).header("set-cookie") is None


def test_a_cookie_is_found_in_any_cookie_field(proxies: list[Wire]) -> None:
    replicas = serve(proxies, "cookie")
    cookie = cookie_of(ask(proxies[0].client()))
    for _ in range(4):
        assert ask(proxies[1].client(), "cookie: a=b", f"cookie: {cookie}").header("set-cookie") is None
    assert sorted(asked(replicas)) == [0, 0, 0, 5]


@pytest.mark.parametrize("value", ["-~aaaaaaaabbbbbbbb", "x", ""])
def test_a_cookie_that_no_proxy_has_set_is_replaced(proxies: list[Wire], value: str) -> None:
    serve(proxies, "cookie")
    cookie_of(ask(proxies[0].client(), f"cookie: {NAME}={value}"))


def test_a_cookie_is_replaced_when_its_replica_is_gone(proxies: list[Wire]) -> None:
    replicas = serve(proxies, "cookie")
    cookie = cookie_of(ask(proxies[0].client()))
    proxies[0].route(*(each for each in replicas if not each.received), affinity="cookie")
    assert cookie_of(ask(proxies[0].client(), f"cookie: {cookie}")) != cookie


def test_a_cookie_is_secure_if_the_client_came_by_https(proxies: list[Wire]) -> None:
    serve(proxies, "cookie")
    got = ask(proxies[0].client(), "x-forwarded-proto: https")
    cookie_of(got, "; path=/; httponly; samesite=lax; secure")


def test_a_websocket_belongs_to_a_session_too(proxies: list[Wire]) -> None:
    replicas = serve(proxies, "cookie")
    cookie = cookie_of(ask(proxies[0].client()))
    (home,) = [each for each in replicas if each.received]
    proxies[1].client().send(
        b"GET /ws HTTP/1.1\r\nhost: shop\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\ncookie: %b\r\n\r\n" % cookie.encode()
    )
    assert home.last.head.startswith(b"GET /ws")
