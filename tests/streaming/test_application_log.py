"""The option `stream_log` of an application: where it is set, what it warns of, and which log its routes get."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from app_toolkit import ConfigError, DeploymentConfig, Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, ai_sdk_router, openai_router, websocket_router
from app_toolkit.config.models import ApplicationConfig, AutoscalingConfig
from app_toolkit.config.options import PlanOptions
from app_toolkit.declare.planning import plan, shared_logs, stream_log_warnings
from app_toolkit.engines.one_process.engine import in_one_process
from app_toolkit.observability.context import REPLICA, ReplicaContext
from app_toolkit.streaming import (
    MemoryStreamLog,
    SharedStreamLog,
    StreamLog,
    StreamLogDeployment,
    resumable,
    stream_router,
)
from app_toolkit.streaming.redis import RedisStreamLog
from app_toolkit.streaming.shared import application_log
from app_toolkit.types import ReplicaId
from tests.patience import PATIENCE_S
from tests.streaming.redis_server import RedisServer


async def echo(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent(request.prompt)


def chat(log: Any = None, config: DeploymentConfig | None = None, **options: Any) -> Toolkit:
    """An app whose routes keep streams."""
    app = Toolkit(deployment=config, **options)
    app.include_router(ai_sdk_router(echo, log=log), prefix="/api/chat")
    return app


def planned(app: FastAPI, stream_log: str | None = None, **options: Any) -> Any:
    config = ApplicationConfig() if stream_log is None else ApplicationConfig(stream_log=stream_log)
    return plan(app, target="shop:app", app_dir="/", config=config, **options)


TWO = DeploymentConfig(name="app", num_replicas=2)
SCALED = DeploymentConfig(name="app", autoscaling_config=AutoscalingConfig(max_replicas=5))


@pytest.mark.parametrize(
    ("app", "options"),
    [
        (chat(config=TWO), {}),
        (chat(config=SCALED), {}),
        (chat(), {"num_replicas": 3}),
        (chat(), {"overrides": {"app": {"num_replicas": 4}}}),
        (chat(config=DeploymentConfig(name="app", num_replicas="auto")), {}),
    ],
)
def test_the_log_of_several_replicas_is_shared_unless_another_one_is_named(
    app: Toolkit, options: dict[str, Any]
) -> None:
    spec = planned(app, **options)
    assert (spec.stream_log, spec.automatic_stream_log) == ("shared", True)
    assert [log.name for log in shared_logs([spec])] == ["stream-log"]
    assert list(stream_log_warnings([spec])) == []
    named = planned(app, **options, stream_log="redis")
    assert (named.stream_log, named.automatic_stream_log) == ("redis", False)


@pytest.mark.parametrize(
    "app", [chat(), chat(MemoryStreamLog(), TWO), chat(SharedStreamLog(), TWO), Toolkit(deployment=TWO), FastAPI()]
)
def test_no_shared_log_is_started_for_one_replica_or_for_routes_that_name_their_log(app: FastAPI) -> None:
    spec = planned(app)
    assert (spec.stream_log, spec.automatic_stream_log) == ("memory", True)


def test_the_ingress_that_has_several_replicas_decides_and_not_another_one() -> None:
    app = Toolkit(deployment=TWO)
    app.include_router(stream_router(), prefix="/in", deployment=DeploymentConfig(name="streams"))
    assert planned(app).stream_log == "memory"


@pytest.mark.parametrize(
    ("app", "options", "number"),
    [
        (chat(config=TWO, stream_log="memory"), {}, "has 2"),
        (chat(config=SCALED, stream_log="memory"), {}, "may have 5"),
        (chat(config=TWO, stream_log="shared"), {"stream_log": "memory"}, "has 2"),
    ],
)
def test_several_replicas_with_streams_in_their_memory_are_warned_of(
    app: Toolkit, options: dict[str, Any], number: str
) -> None:
    (warning,) = stream_log_warnings([planned(app, **options)])
    assert warning == (
        f"The streams of POST /api/chat are in the memory of one replica, and 'app' of application 'default' {number}: "
        'set stream_log to "shared" (`--stream-log shared`), or clients that come back to another replica lose their '
        "streams."
    )


def test_a_route_that_names_a_log_in_memory_is_warned_of_by_its_own_name() -> None:
    app = chat(config=TWO)
    app.include_router(stream_router(log=MemoryStreamLog()), prefix="/in")
    spec = planned(app)
    assert spec.stream_log == "shared"
    (warning,) = stream_log_warnings([spec])
    assert warning.startswith("The streams of GET /in/{stream} are in the memory of one replica")
    assert "leave out the `log` of these routes" in warning


@pytest.mark.parametrize(
    ("app", "options"),
    [
        (chat(), {}),
        (chat(stream_log="memory"), {}),
        (chat(config=TWO, stream_log="shared"), {}),
        (chat(config=TWO), {"stream_log": "redis"}),
        (chat(SharedStreamLog(), TWO), {}),
        (chat(StreamLogDeployment.bind(), TWO), {}),
        (Toolkit(deployment=TWO, stream_log="memory"), {}),
    ],
)
def test_one_replica_or_another_log_is_not_warned_of(app: Toolkit, options: dict[str, Any]) -> None:
    assert list(stream_log_warnings([planned(app, **options)])) == []


def test_every_router_and_an_ordinary_app_are_warned_of() -> None:
    routers = [openai_router(echo), websocket_router(echo), ai_sdk_router(echo), stream_router()]
    inner, outer = FastAPI(), FastAPI()

    @inner.get("/words")
    @resumable()
    async def words() -> StreamingResponse:
        raise AssertionError

    apps = [outer]
    outer.mount("/inner", inner)
    for router in routers:
        apps.append(FastAPI())
        apps[-1].include_router(router, prefix="/in")
    specs = [planned(app, num_replicas=2, stream_log="memory") for app in apps]
    found = [next(stream_log_warnings([spec])).split(" are ")[0] for spec in specs]
    assert found == [
        "The streams of GET /words",
        "The streams of POST /in/responses",
        "The streams of WebSocket /in",
        "The streams of POST /in",
        "The streams of GET /in/{stream}",
    ]
    app = FastAPI()
    app.include_router(ai_sdk_router(echo, resume=False), prefix="/in")
    assert planned(app, num_replicas=2).stream_log == "memory"


def test_a_warning_names_the_routes_of_several_routers() -> None:
    app = FastAPI()
    for prefix in ("/a", "/b", "/c", "/d", "/e"):
        app.include_router(ai_sdk_router(echo), prefix=prefix)
    (warning,) = stream_log_warnings([planned(app, num_replicas=2, stream_log="memory")])
    assert warning.startswith("The streams of POST /a and POST /b and POST /c and 2 more are in the memory")


def test_a_shared_log_is_an_application_of_its_own_unless_there_is_one() -> None:
    app = planned(chat(stream_log="shared"), name="chat")
    (log,) = shared_logs([app])
    assert (log.name, log.route_prefix, log.callees) == ("stream-log", None, ("stream-log",))
    assert not log.packed
    assert shared_logs([app, log]) == []
    assert shared_logs([planned(chat())]) == []


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@cache",
        "redis://:s3cret/word@cache",
        "rediss://me:s3cret@cache:6379/1",
        "unix:///tmp/redis?password=s3cret",
        "s3cret://",
    ],
)
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    for refused in (lambda: Toolkit(stream_log=url), lambda: PlanOptions(stream_log=url)):
        with pytest.raises(ConfigError, match="stream_log") as error:
            refused()
        assert "s3cret" not in str(error.value)


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shared, redis, or a URL such as redis://HOST:6379/0, not 'disk'"):
        Toolkit(stream_log="disk")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.end()


async def sent(app: Any) -> httpx.Response:
    body = {"id": "one", "message": {"role": "user", "parts": [{"type": "text", "text": "hello"}]}}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(base_url="http://test", transport=transport, timeout=PATIENCE_S) as http:
        return await http.post("/api/chat", json=body)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["url", "variable", "file"])
async def test_streams_are_kept_in_redis_if_the_application_says_so(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    app: Any
    if kind == "url":
        app = chat(stream_log=server.url)
    elif kind == "variable":
        monkeypatch.setenv("APP_TOOLKIT_REDIS_URL", server.url)
        app = chat(stream_log="redis")
    else:
        plain = FastAPI()
        plain.include_router(ai_sdk_router(echo), prefix="/api/chat")
        app = in_one_process(plain, stream_log=server.url)
    log = application_log({"type": "http", "extensions": {"app_toolkit": {"stream_log": server.url}}})
    assert isinstance(log, RedisStreamLog)
    async with aclosing(log):
        answer = await sent(app)
        assert (answer.status_code, '"hello"' in answer.text) == (200, True)
        with redis.Redis.from_url(server.url) as client:
            kept = client.get('app-toolkit:stream:key:chat:["default", "one"]')
            assert kept == answer.headers["x-stream-id"].encode()


@pytest.mark.anyio
async def test_redis_without_its_variable_is_a_sentence_with_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APP_TOOLKIT_REDIS_URL", raising=False)
    answer = await sent(chat(stream_log="redis"))
    assert (answer.status_code, answer.text) == (
        503,
        "the stream log is not configured: set the environment variable APP_TOOLKIT_REDIS_URL of the replicas to the "
        "URL of the Redis server",
    )


@pytest.mark.anyio
async def test_a_log_that_a_router_names_is_used_instead(server: RedisServer) -> None:
    log: StreamLog = MemoryStreamLog()
    answer = await sent(chat(log, stream_log=server.url))
    assert await log.find('chat:["default", "one"]') == answer.headers["x-stream-id"]


@pytest.mark.anyio
async def test_a_shared_log_is_the_memory_of_an_app_in_one_process() -> None:
    answer = await sent(chat(stream_log="shared"))
    assert (answer.status_code, '"hello"' in answer.text) == (200, True)


def test_the_stream_of_a_mirrored_request_takes_no_place_in_a_shared_log() -> None:
    scope: dict[str, Any] = {"type": "http", "extensions": {"app_toolkit": {"stream_log": "shared"}}}
    assert isinstance(application_log(scope | {"headers": []}), SharedStreamLog)
    assert isinstance(application_log(scope | {"headers": [(b"x-app-toolkit-mirrored", b"1")]}), MemoryStreamLog)


@pytest.mark.anyio
async def test_applications_with_one_shared_log_have_keys_of_their_own_and_their_revisions_share_them() -> None:
    log = SharedStreamLog()

    async def of(application: str, key: str, revision: int, *, begun: bool = False) -> str | None:
        REPLICA.set(ReplicaContext(application, "app", ReplicaId(f"{application}.app-1"), revision))
        if begun:
            await log.begin(application, "owner", "text/plain", key)
        return await log.find(key)

    async def found(application: str, revision: int = 1, *, begun: bool = False) -> str | None:
        return await asyncio.create_task(of(application, "chat:one", revision, begun=begun))

    try:
        assert await found("shop", begun=True) == "shop"
        assert await found("other") is None
        assert await found("other", begun=True) == "other"
        assert await found("shop", 13) == "shop"
        assert await log.media_type("shop") == "text/plain"
    finally:
        await log.remove("shop")
        await log.remove("other")
