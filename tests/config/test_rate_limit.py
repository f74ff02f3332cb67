"""`config.rate_limit`: how many requests a client may send, and what identifies it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.affinity import KeySource
from app_toolkit.config.models import DeploymentConfig, HTTPOptions
from app_toolkit.config.rate_limit import MOST, WINDOWS_S, RateLimit, counted_by, rate_limit
from app_toolkit.errors import ConfigError


@given(st.integers(1, MOST), st.sampled_from(list(WINDOWS_S)))
def test_a_limit_is_a_number_in_a_window(most: int, window: str) -> None:
    assert rate_limit(f"{most}/{window}") == RateLimit(most, WINDOWS_S[window])


@given(st.text() | st.from_regex(r"[0-9+. -]*/?(minutes?|week)?", fullmatch=True))
def test_a_limit_is_either_parsed_or_refused(option: str) -> None:
    try:
        parsed = rate_limit(option)
    except ValueError:
        return
    assert f"{parsed.most}/{next(name for name, s in WINDOWS_S.items() if s == parsed.window_s)}" == option


@pytest.mark.parametrize("option", ["0/minute", "1_0/minute", f"{MOST + 1}/day", "100", "100/week", "١/minute", ""])
def test_a_limit_with_a_mistake_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=r"rate_limit = .*should be a number up to 1,000,000,000 per second"):
        DeploymentConfig(name="web", rate_limit=option)


@pytest.mark.parametrize(
    ("option", "source"),
    [
        ("client", KeySource("client")),
        ("session", None),
        ("header:Authorization", KeySource("header", "authorization")),
        ("query:Key", KeySource("query", "Key")),
        ("cookie:user", KeySource("cookie", "user")),
    ],
)
def test_what_identifies_a_client(option: str, source: KeySource | None) -> None:
    assert counted_by(DeploymentConfig(name="web", rate_limit_by=option).rate_limit_by) == source


@pytest.mark.parametrize("option", ["cookie", "header:", "header:host", "client,query:key", "user", ""])
def test_a_client_cannot_be_identified_by_anything_else(option: str) -> None:
    with pytest.raises(ConfigError, match=r"rate_limit_by = "):
        DeploymentConfig(name="web", rate_limit_by=option)


@pytest.mark.parametrize(
    "url", ["redis://:hidden@cache:6379", "rediss://u:hidden@cache", "redis://cache?password=hidden"]
)
def test_the_storage_has_no_password_in_an_option(url: str) -> None:
    with pytest.raises(ConfigError, match=r"rate_limit_storage: .*APP_TOOLKIT_REDIS_URL.* of the proxies") as raised:
        HTTPOptions(rate_limit_storage=url)
    assert "hidden" not in str(raised.value)


def test_the_storage_is_memory_or_redis() -> None:
    for choice in ("memory", "redis", "redis://cache:6379/1", "unix:///run/redis"):
        assert HTTPOptions(rate_limit_storage=choice).rate_limit_storage == choice
    with pytest.raises(ConfigError, match=r"should be memory, redis, or a URL such as .*, not 'disk'"):
        HTTPOptions(rate_limit_storage="disk")
