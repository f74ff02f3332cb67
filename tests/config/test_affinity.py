"""`config.affinity`: the option that says where the key of a session is."""

import pytest

from app_toolkit.config.affinity import KeySource, key_sources


@pytest.mark.parametrize(
    ("option", "sources"),
    [
        ("header:Mcp-Session-Id", [KeySource("header", "mcp-session-id")]),
        ("query:sid", [KeySource("query", "sid")]),
        ("query:the id", [KeySource("query", "the id")]),
        ("cookie:Session", [KeySource("cookie", "Session")]),
        ("cookie", [KeySource("own_cookie")]),
        ("client", [KeySource("client")]),
        ("header:a, cookie,client", [KeySource("header", "a"), KeySource("own_cookie"), KeySource("client")]),
    ],
)
def test_an_option_names_where_the_key_is(option: str, sources: list[KeySource]) -> None:
    assert list(key_sources(option)) == sources


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("", "should be header:NAME, query:NAME, cookie:NAME, cookie or client"),
        ("header", "should be header:NAME"),
        ("header:", "should be header:NAME"),
        ("client:x", "should be header:NAME"),
        ("cookie,", "should be header:NAME"),
        ("path:x", "should be header:NAME"),
        ("header:a b", "'a b' is not the name of a header"),
        ("cookie:a;b", "'a;b' is not the name of a cookie"),
        ("header:Host", "the header 'host' cannot be a key"),
        ("header:content-type", "the header 'content-type' cannot be a key"),
        ("header:X-App-Toolkit-Hop", "the header 'x-app-toolkit-hop' cannot be a key"),
    ],
)
def test_an_invalid_option_is_refused(option: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        key_sources(option)
