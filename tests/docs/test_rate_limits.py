"""The limit of docs/traffic.md, in one process."""

import pytest
from fastapi.testclient import TestClient

from app_toolkit.exchange.filters.rate_counters import MOST_COUNTERS, SOCKET_TIMEOUT_S
from app_toolkit.exchange.filters.rate_limit import LOG_INTERVAL_S, PAUSE_S, RATE_LIMITED, TIMEOUT_S

from .pages import page

SECTION = page("docs/traffic.md").below("Rate limits")


def test_the_limit_of_the_page_refuses_what_the_page_shows() -> None:
    names: dict[str, object] = {}
    begins = "from app_toolkit import DeploymentConfig, Toolkit\napp = Toolkit()\n"
    code = SECTION.partition("```python\n")[2].partition("```")[0]
    exec(begins + code, names)
    with TestClient(names["app"]) as client:  # type: ignore[arg-type]
        key = {"authorization": "Bearer one"}
        answers = [client.get("/api/answer", headers=key) for _ in range(101)]
        assert [each.status_code for each in answers] == [200] * 100 + [429]
        assert client.get("/api/answer", headers={"authorization": "Bearer two"}).status_code == 200
    (refused,) = (block for block in page("docs/traffic.md").shown("http") if "429" in block)
    for line in refused.splitlines()[1:]:
        name, _, value = line.partition(": ")
        got = answers[-1].headers[name]
        if name == "ratelimit-policy":
            assert got == value
        else:  # the time that the requests have taken is missing
            assert got.rstrip("0123456789") == value.rstrip("0123456789")


@pytest.mark.parametrize(
    "sentence",
    [
        f"does not answer within {TIMEOUT_S:g} s, requests",
        f"up to {MOST_COUNTERS:,} clients",
        f"asked again after {PAUSE_S:g} s",
        f"`{RATE_LIMITED}` counts them as `unchecked`",
    ],
)
def test_the_page_says_what_happens_without_the_server(sentence: str) -> None:
    assert sentence in " ".join(SECTION.split())
    assert (LOG_INTERVAL_S, SOCKET_TIMEOUT_S) == (60, TIMEOUT_S)
