"""Requests whose bodies turn out to be slow while they hold a slot."""

from typing import Any

import pytest

from app_toolkit.exchange.upload_rate import MinimumRate, Period, measured
from tests.replica.client import Connection, Serve, Served, field, wait_until

APP = """
    app = FastAPI()

    @app.get("/")
    async def root():
        return "root"

    @app.post("/upload")
    async def upload(request: Request):
        try:
            return len(await request.body())
        finally:
            mark("ended")

    @app.post("/busy")
    async def busy(request: Request):
        async for _ in request.stream():
            mark("began")
            await hold_until("go")
        return "done"

    async def early(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.body", "body": b"end"})

    app.mount("/early", early)
"""


@pytest.fixture
def served(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A replica with two slots, of which slow bodies may hold one."""
    monkeypatch.setattr("app_toolkit.replica.admission.replica_request.PROMPT", MinimumRate(64 * 1024, 0.25))
    monkeypatch.setattr("app_toolkit.replica.admission.live_sets.SWEEP_S", 0.02)
    return serve(APP, max_ongoing_requests=2)


@pytest.fixture
def periods(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the body was slow, for each check of a body for which the app waits."""
    found: list[bool] = []

    def noted(*given: Any) -> Period | None:
        period = measured(*given)
        found.append(period is None)
        return period

    monkeypatch.setattr("app_toolkit.replica.admission.replica_request.measured", noted)
    return found


def wait_for_periods(found: list[bool]) -> None:
    """Wait while the rate of a slow body is measured three times."""
    before = sum(found)
    wait_until(lambda: sum(found) >= before + 3, "a slow body is measured")


def begin(served: Served, path: str = "/upload", length: int = 100_000) -> Connection:
    connection = served.connect()
    connection.send_head("POST", path, [field(), ("content-length", str(length))])
    connection.send(b"s")
    return connection


def slow_bodies(served: Served) -> int:
    assert served.server.replica is not None
    return len(served.server.replica.live.slow_bodies)


def test_a_request_with_a_slow_body_is_ended_if_others_hold_the_share(served: Served) -> None:
    first = begin(served)
    wait_until(lambda: slow_bodies(served) == 1, "the first body is slow")
    second = begin(served)
    refused = second.getresponse()
    assert refused.status == 408
    assert b"requests with such bodies hold 1 slots of the replica" in refused.read()
    wait_until(lambda: served.marked("ended"), "the handler is cancelled")
    assert served.connect().ask("/").read() == b'"root"'
    first.send(b"s" * 99_999)
    assert first.getresponse().read() == b"100000"
    assert slow_bodies(served) == 0


def test_time_in_which_the_app_does_not_read_does_not_count(served: Served, periods: list[bool]) -> None:
    begin(served)
    wait_until(lambda: slow_bodies(served) == 1, "the first body is slow")
    busy = begin(served, "/busy")
    wait_until(lambda: served.marked("began"), "the app works on the first piece")
    wait_for_periods(periods)
    served.release("go")
    busy.send(b"s" * 99_999)
    assert busy.getresponse().read() == b'"done"'


def test_a_response_that_has_begun_is_not_cut_off(served: Served, periods: list[bool]) -> None:
    begin(served)
    wait_until(lambda: slow_bodies(served) == 1, "the first body is slow")
    early = begin(served, "/early/", 4)
    response = early.getresponse()
    assert response.read(5) == b"begun"
    wait_for_periods(periods)
    early.send(b"low")
    assert response.read() == b"end"
