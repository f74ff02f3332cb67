"""Trusted proxies and the fields that they forward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app_toolkit.config.models import HTTPOptions, networks
from app_toolkit.edge.forwarded import Trust, scheme
from app_toolkit.errors import ConfigError


def trust(listed: str) -> Trust:
    return Trust(networks(listed))


@pytest.mark.parametrize(
    ("listed", "host", "believed"),
    [
        ("127.0.0.1,::1", "127.0.0.1", True),
        ("127.0.0.1,::1", "::1", True),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        (" 10.0.0.0/8 , 192.168.1.7", "10.200.3.4", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("fd00::/8", "fd12::1", True),
        ("fd00::/8", "fd12::1%eth0", True),
        ("fd00::/8", "10.0.0.1", False),
        ("*", "8.8.8.8", True),
        ("10.0.0.0/8,*", "no address", True),
        ("", "127.0.0.1", False),
        ("10.0.0.0/8", "", False),
        ("10.0.0.0/8", "no address", False),
    ],
)
def test_addresses_and_networks_are_believed(listed: str, host: str, believed: bool) -> None:
    assert (host in trust(listed)) is believed


@pytest.mark.parametrize("listed", ["localhost", "10.0.0.1/8", "10.0.0.0/33", "300.1.1.1", "127.0.0.1;::1"])
def test_invalid_address_is_one_sentence(listed: str) -> None:
    with pytest.raises(ConfigError, match=r"^HTTPOptions.forwarded_allow_ips = '.*': .*; it should be addresses"):
        HTTPOptions(forwarded_allow_ips=listed)


@pytest.mark.parametrize(
    ("values", "client"),
    [
        (["203.0.113.7"], ("203.0.113.7", 0)),
        (["203.0.113.7:4711"], ("203.0.113.7", 4711)),
        (["[2001:db8::1]:4711"], ("2001:db8::1", 4711)),
        (["2001:db8::1"], ("2001:db8::1", 0)),
        (["6.6.6.6, 203.0.113.7, 10.0.0.9"], ("203.0.113.7", 0)),
        (["6.6.6.6", "203.0.113.7", "10.0.0.9:99"], ("203.0.113.7", 0)),
        (["10.0.0.8, 10.0.0.9"], ("10.0.0.8", 0)),
        (["unknown"], ("unknown", 0)),
        (["a" * 253], ("a" * 253, 0)),
        (["a" * 254], None),
        (["203.0.113.7", "a" * 60_000], None),
        ([""], None),
        (["203.0.113.7,"], None),
    ],
)
def test_the_client_is_the_last_one_that_is_not_believed_itself(
    values: list[str], client: tuple[str, int] | None
) -> None:
    fields = [(b"x-forwarded-for", value.encode()) for value in values]
    assert trust("10.0.0.0/8").client(fields) == client


def test_client_is_the_first_address_if_all_proxies_are_trusted() -> None:
    assert trust("*").client([(b"x-forwarded-for", b"6.6.6.6, 203.0.113.7")]) == ("6.6.6.6", 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["https"], "https"),
        (["wss"], "wss"),
        (["http", " https "], "https"),
        (["https, http"], None),
        (["gopher"], None),
    ],
)
def test_a_scheme_is_one_of_four(values: list[str], expected: str | None) -> None:
    assert scheme([(b"x-forwarded-proto", value.encode()) for value in values]) == expected


ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.sampled_from(
        ["10.0.0.1", "127.0.0.1", "unknown", "", "[::1]", "[::1", "_hidden", "[::1]:80", "[::1]x", "a:b:c"]
    ),
    st.tuples(st.ip_addresses(v=4), st.integers(0, 65_535)).map(lambda pair: f"{pair[0]}:{pair[1]}"),
)


async def seen_under_uvicorn(listed: str, fields: list[tuple[bytes, bytes]]) -> tuple[object, object]:
    scope = {"type": "http", "client": ("127.0.0.1", 1), "scheme": "http", "headers": fields}

    async def app(scope: dict, receive: object, send: object) -> None:
        pass

    await ProxyHeadersMiddleware(app, listed)(scope, None, None)
    return scope["client"], scope["scheme"]


@given(
    st.sampled_from(["127.0.0.1", "127.0.0.1,10.0.0.0/8", "*", "127.0.0.1,::1"]),
    st.lists(st.lists(ADDRESSES).map(", ".join), max_size=3),
    st.lists(st.sampled_from(["http", "https", "ws", "wss", "", "HTTPS", "https, http", "\xe9"]), max_size=2),
)
def test_uvicorn_sees_the_same(listed: str, clients: list[str], schemes: list[str]) -> None:
    fields = [(b"x-forwarded-for", value.encode()) for value in clients]
    fields += [(b"x-forwarded-proto", value.encode("latin-1")) for value in schemes]
    seen = seen_under_uvicorn(listed, fields)
    with pytest.raises(StopIteration) as ended:
        seen.send(None)
    assert ended.value.value == (trust(listed).client(fields) or ("127.0.0.1", 1), scheme(fields) or "http")
