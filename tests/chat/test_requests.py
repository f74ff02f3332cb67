"""What the chat routers check of a request: its origin, its media type and its size."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app_toolkit import ConfigError
from app_toolkit.chat import (
    ChatEvent,
    ChatRequest,
    SQLConversationStore,
    TextEvent,
    ai_sdk_router,
    conversations_router,
    openai_router,
    websocket_router,
)
from app_toolkit.chat.requests import RequestChecks, is_json
from tests.chat.served import asking
from tests.docs.pages import page

pytestmark = pytest.mark.anyio

MESSAGE = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
CHAT = {"id": "chat", "messages": [MESSAGE]}
COMPLETION = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}

CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/api/chat", CHAT),
    ("POST", "/api/chat/text", CHAT),
    ("POST", "/api/chat/chat/stop", None),
    ("POST", "/plain", CHAT),
    ("PATCH", "/api/conversations/chat", {"title": "new"}),
    ("DELETE", "/api/conversations/chat", None),
    ("POST", "/v1/chat/completions", COMPLETION),
    ("POST", "/v1/responses", {"model": "default", "input": "hello"}),
    ("POST", "/v1/responses/resp_1/cancel", None),
    ("DELETE", "/v1/responses/resp_1", None),
    ("POST", "/v1/embeddings", {"model": "lengths", "input": "hello"}),
]


async def shout(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent(request.prompt.upper())


async def lengths(texts: Any) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    store = SQLConversationStore(":memory:")
    options: dict[str, Any] = {"origins": ["https://chat.example.com"]}
    app = FastAPI()
    app.include_router(ai_sdk_router(shout, conversations=store, max_body_size=1_000, **options), prefix="/api/chat")
    app.include_router(ai_sdk_router(shout, resume=False, max_body_size=1_000, **options), prefix="/plain")
    app.include_router(conversations_router(store, **options), prefix="/api/conversations")
    openai = openai_router(shout, embeddings={"lengths": lengths}, max_body_size=1_000, **options)
    app.include_router(openai, prefix="/v1")
    async with asking(app) as http:
        yield http
    await store.close()


async def test_foreign_page_cannot_change_anything_with_cookies(http: httpx.AsyncClient) -> None:
    own = str(http.base_url).rstrip("/")
    for method, path, body in CHANGES:
        for origin, cookie, allowed in (
            ("https://evil.example", "a=1", False),
            ("null", "a=1", False),
            (None, "a=1", True),
            ("https://evil.example", None, True),
            ("https://chat.example.com", "a=1", True),
            (own, "a=1", True),
        ):
            headers = {name: value for name, value in (("origin", origin), ("cookie", cookie)) if value}
            response = await http.request(method, path, json=body, headers=headers)
            assert (response.status_code != 403) is allowed, (method, path, headers)
            assert allowed or str(origin) in response.text


async def test_body_without_the_type_json_is_refused(http: httpx.AsyncClient) -> None:
    for method, path, body in CHANGES:
        content = httpx.Request(method, "http://x", json=body).content
        for headers in ({"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}, {}):
            if body is None:
                continue
            response = await http.request(method, path, content=content, headers=headers)
            assert response.status_code == 415, (path, headers)
            assert "application/json" in response.text


async def test_stop_with_a_body_of_another_type_is_refused_and_one_without_a_body_is_not(
    http: httpx.AsyncClient,
) -> None:
    refused = await http.post("/api/chat/chat/stop", content="{}", headers={"content-type": "text/plain"})
    assert refused.status_code == 415
    assert (await http.post("/api/chat/chat/stop", headers={"content-type": "text/plain"})).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_above_the_limit_is_refused(http: httpx.AsyncClient, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 50

    headers = {"content-type": "application/json"}
    for path in (path for method, path, body in CHANGES if body and method == "POST"):
        response = await http.post(path, content=chunks() if chunked else b" " * 1_001, headers=headers)
        assert response.status_code == 413, path
        assert "1,000 bytes" in response.text
        if path.startswith("/v1"):
            assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/problem+json", True),
        ("text/json", False),
        ("text/plain; a=application/json", False),
        ("", False),
        (None, False),
    ],
)
def test_media_types_of_json(content_type: str | None, expected: bool) -> None:
    assert is_json(content_type) == expected


@pytest.mark.parametrize("router", [ai_sdk_router, openai_router, websocket_router])
def test_origin_that_no_browser_sends_is_refused_when_the_router_is_created(router: Any) -> None:
    for origins in (["https://chat.example.com/"], ["chat.example.com"], "https://chat.example.com"):
        with pytest.raises(ConfigError, match="origins"):
            router(shout, origins=origins)


def test_limit_of_a_body_is_16_mib_by_default() -> None:
    assert RequestChecks().max_body_size == 16 * 2**20
    with pytest.raises(ConfigError, match="max_body_size = 0"):
        ai_sdk_router(shout, max_body_size=0)


async def test_page_of_another_origin_uses_the_chat_as_the_page_says() -> None:
    app = page("docs/chat-ai-sdk.md").run()["app"]
    origin = {"origin": "https://chat.example.com"}
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    async with asking(app) as http:
        preflight = await http.options("/api/public", headers={**origin, **asks})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://chat.example.com"
        assert preflight.headers["access-control-allow-credentials"] == "true"
        response = await http.post("/api/public", json=CHAT, headers={**origin, "cookie": "session=1"})
        assert (response.status_code, '"delta":"HELLO "' in response.text) == (200, True)
        assert response.headers["access-control-allow-origin"] == "https://chat.example.com"
        assert "X-Stream-ID" in response.headers["access-control-expose-headers"]
        evil = {"origin": "https://evil.example"}
        assert (await http.options("/api/public", headers={**evil, **asks})).status_code == 400
        response = await http.post("/api/public", json=CHAT, headers={**evil, "cookie": "session=1"})
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
