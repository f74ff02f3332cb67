"""API keys: authentication, limits, and the release of permits."""

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from app_toolkit import Toolkit
from app_toolkit.chat import (
    FileStore,
    SQLConversationStore,
    ai_sdk_router,
    api_keys,
    conversations_router,
    files_router,
    openai_router,
)
from app_toolkit.chat.echo import EchoModel
from app_toolkit.chat.key_files import parse_keys
from app_toolkit.errors import ConfigError
from app_toolkit.streaming import MemoryStreamLog, resumable
from tests.chat.served import PausedModel, asking, in_process
from tests.docs.pages import page
from tests.patience import until

pytestmark = pytest.mark.anyio

ADA, BOB = "ada-0123456789abcdef", "bob-0123456789abcdef"
KEYS = {"ada": ADA, "bob": BOB}
BODY = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}
UI = {"id": "chat", "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}]}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# Who is admitted


@pytest.mark.parametrize("kind", [FastAPI, Toolkit])
async def test_a_request_needs_a_key_and_the_route_gets_its_name(kind: type[FastAPI]) -> None:
    keys = api_keys(KEYS, max_concurrent=1)
    app = kind()

    @app.get("/who", dependencies=[Depends(keys)])
    async def who(name: Annotated[str, Depends(keys)]) -> str:
        return name

    async with in_process(app) as http:
        for header, status in (
            ({}, 401),
            (bearer("ada"), 401),
            (bearer(ADA[:-1]), 401),
            (bearer(hashlib.sha256(ADA.encode()).hexdigest()), 401),
            ({"authorization": f"Basic {ADA}"}, 401),
            ({"authorization": "Bearer \u00e9\u00e9".encode("latin-1")}, 401),
            (bearer(ADA), 200),
            ({"authorization": f"bearer {BOB}"}, 200),
        ):
            response = await http.get("/who", headers=header)  # type: ignore[arg-type]
            assert response.status_code == status, header
            assert response.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
        assert response.json() == "bob"
        assert (await http.get("/who")).json() == {
            "detail": "the API key is missing: send it as Authorization: Bearer KEY"
        }


async def test_each_key_has_chats_and_files_of_its_own(tmp_path: Path) -> None:
    keys, store, files = api_keys(KEYS), SQLConversationStore(":memory:"), FileStore(tmp_path)
    app = FastAPI(dependencies=[Depends(keys)])
    app.include_router(ai_sdk_router(EchoModel(), conversations=store, files=files), prefix="/api/chat")
    app.include_router(conversations_router(store, files=files), prefix="/api/conversations")
    app.include_router(files_router(files), prefix="/api/files")
    async with asking(app) as http:
        assert (await http.post("/api/chat", json=UI, headers=bearer(ADA))).status_code == 200
        sent = await http.post("/api/files", files={"file": ("a.txt", b"text")}, headers=bearer(ADA))
        for path in ("/api/conversations/chat", sent.json()["url"]):
            statuses = [(await http.get(path, headers=bearer(key))).status_code for key in (ADA, BOB)]
            assert statuses == [200, 404]
    await store.close()


async def test_the_errors_have_the_format_of_the_router() -> None:
    clock = [0.0]
    keys = api_keys(KEYS, max_per_minute=1, now=lambda: clock[0])
    app = FastAPI()
    app.include_router(openai_router(EchoModel()), prefix="/v1", dependencies=[Depends(keys)])
    app.include_router(ai_sdk_router(EchoModel()), prefix="/chat", dependencies=[Depends(keys)])
    async with in_process(app) as http:
        wrong = await http.get("/v1/models", headers=bearer("wrong"))
        assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer")
        assert wrong.json()["error"]["code"] == "invalid_api_key"
        shown = await http.post("/chat", json=UI)
        assert (shown.status_code, shown.text) == (401, "the API key is missing: send it as Authorization: Bearer KEY")

        assert (await http.get("/v1/models", headers=bearer(ADA))).status_code == 200
        clock[0] = 12.5
        over = await http.post("/v1/chat/completions", json=BODY, headers=bearer(ADA))
        assert (over.status_code, over.headers["retry-after"]) == (429, "48")
        assert over.json()["error"]["code"] == "rate_limit_exceeded"
        shown = await http.post("/chat", json=UI, headers=bearer(ADA))
        assert (shown.status_code, shown.text) == (429, "the API key has reached its limit of requests per minute: 1")
        assert (await http.get("/v1/models", headers=bearer(BOB))).status_code == 200
        clock[0] = 60.0
        assert (await http.get("/v1/models", headers=bearer(ADA))).status_code == 200


async def test_the_openapi_document_names_the_scheme() -> None:
    app = FastAPI()
    app.include_router(openai_router(EchoModel()), dependencies=[Depends(api_keys(KEYS))])
    document = app.openapi()
    assert document["components"]["securitySchemes"] == {"ApiKey": {"type": "http", "scheme": "bearer"}}
    assert document["paths"]["/models"]["get"]["security"] == [{"ApiKey": []}]


def test_a_websocket_sends_the_key_as_a_header_or_as_a_subprotocol() -> None:
    keys = api_keys(KEYS, max_concurrent=1)
    app = FastAPI()

    @app.websocket("/ws", dependencies=[Depends(keys)])
    async def greet(websocket: WebSocket, name: Annotated[str, Depends(keys)]) -> None:
        await websocket.accept(subprotocol="chat" if "chat" in websocket.scope["subprotocols"] else None)
        await websocket.send_text(name)
        await websocket.receive()

    client = TestClient(app)
    with client.websocket_connect("/ws", headers=bearer(ADA)) as websocket:
        assert websocket.receive_text() == "ada"
        with client.websocket_connect("/ws", subprotocols=["chat", f"bearer.{BOB}"]) as other:
            assert (other.accepted_subprotocol, other.receive_text()) == ("chat", "bob")
            assert keys.running == {"ada": 1, "bob": 1}
        for offered, status in (([], 401), (["bearer.wrong"], 401), ([f"bearer.{ADA}"], 429)):
            with (
                pytest.raises(WebSocketDisconnect) as denied,
                client.websocket_connect("/ws", subprotocols=offered),
            ):
                pass
            assert denied.value.status_code == status  # type: ignore[attr-defined]
    assert keys.running == {"ada": 0, "bob": 0}


# When a permit is released


async def test_a_stream_holds_its_permit_until_its_last_event() -> None:
    keys, held = api_keys(KEYS, max_concurrent=1), PausedModel()
    app = FastAPI()
    app.include_router(openai_router(held), dependencies=[Depends(keys)])
    async with asking(app) as http:
        asking_for = {"json": {**BODY, "stream": True}, "headers": bearer(ADA)}
        async with http.stream("POST", "/chat/completions", **asking_for) as response:  # type: ignore[arg-type]
            lines = response.aiter_lines()
            await anext(lines)
            refused = await http.post("/chat/completions", json=BODY, headers=bearer(ADA))
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["message"] == "the API key has reached its limit of requests at a time: 1"
            held.released.set()
            assert [line async for line in lines][-2] == "data: [DONE]"
        await until(lambda: keys.running["ada"] == 0)
        assert (await http.post("/chat/completions", json=BODY, headers=bearer(ADA))).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_releases_the_permit(stream: bool) -> None:
    keys, held = api_keys(KEYS, max_concurrent=1), PausedModel()
    app = FastAPI()
    app.include_router(openai_router(held), dependencies=[Depends(keys)])
    async with asking(app) as http:
        asked = asyncio.create_task(
            http.post("/chat/completions", json={**BODY, "stream": stream}, headers=bearer(ADA))
        )
        await until(lambda: held.running == 1)
        assert keys.running["ada"] == 1
        asked.cancel()
        await until(lambda: held.running == 0 and keys.running["ada"] == 0)


async def test_a_client_without_a_permit_left_can_read_and_stop_its_responses() -> None:
    keys, log = api_keys(KEYS, max_concurrent=1), MemoryStreamLog()
    model = PausedModel()
    app = Toolkit()
    app.include_router(openai_router(model, log=log), prefix="/v1", dependencies=[Depends(keys)])
    app.include_router(ai_sdk_router(model, log=log), prefix="/chat", dependencies=[Depends(keys)])
    async with asking(app) as http:
        http.headers.update(bearer(ADA))
        body = {"model": "default", "input": "hello", "background": True}
        url = f"/v1/responses/{(await http.post('/v1/responses', json=body)).json()['id']}"
        await until(lambda: model.running == 1)
        assert (await http.post("/v1/responses", json=body)).status_code == 429
        assert (await http.get("/v1/models")).status_code == 200
        assert (await http.get(url)).json()["status"] == "in_progress"
        async with http.stream("GET", f"{url}?stream=true") as follower:
            assert follower.status_code == 200
            assert (await http.post(f"{url}/cancel")).json()["status"] == "cancelled"
        await until(lambda: keys.running["ada"] == 0)
        async with http.stream("POST", "/chat", json=UI) as chat:
            assert chat.status_code == 200
            assert (await http.post("/chat", json={**UI, "id": "other"})).status_code == 429
            async with http.stream("GET", "/chat/chat/stream") as follower:
                assert follower.status_code == 200
                assert (await http.post("/chat/chat/stop")).json() == {"success": True, "stopped": True}
                assert await follower.aread()
        await until(lambda: keys.running["ada"] == 0)
    assert model.running == 0


async def test_an_ordinary_stream_and_an_exception_release_the_permit() -> None:
    keys = api_keys(KEYS, max_concurrent=1)
    app = FastAPI(dependencies=[Depends(keys)])
    during: list[int] = []

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            during.append(keys.running["ada"])
            yield b"a"
            during.append(keys.running["ada"])

        return StreamingResponse(parts())

    @app.get("/fail")
    async def fail() -> None:
        raise ValueError

    async with asking(app) as http:
        for path, status in (("/stream", 200), ("/fail", 500), ("/missing", 404), ("/stream", 200)):
            assert (await http.get(path, headers=bearer(ADA))).status_code == status
            await until(lambda: keys.running["ada"] == 0)
    assert during == [1, 1, 1, 1]


async def test_a_resumable_stream_holds_its_permit_until_its_generator_has_ended() -> None:
    keys, go_on = api_keys(KEYS, max_concurrent=1), asyncio.Event()
    app = FastAPI()

    @app.get("/count", response_class=EventSourceResponse, dependencies=[Depends(keys)])
    @resumable(log=MemoryStreamLog())
    async def count() -> AsyncIterator[int]:
        yield 1
        await go_on.wait()
        yield 2

    async with asking(app) as http:
        async with http.stream("GET", "/count", headers=bearer(ADA)) as response:
            await anext(response.aiter_lines())
        refused = await http.get("/count", headers=bearer(ADA))
        assert (refused.status_code, keys.running["ada"]) == (429, 1)
        go_on.set()
        await until(lambda: keys.running["ada"] == 0)


# Where keys come from


def test_the_keys_are_read_from_a_variable_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hashed = f"sha256:{hashlib.sha256(BOB.encode()).hexdigest()}"
    monkeypatch.setenv("CHAT_KEYS", f"ada={ADA},bob={hashed}")
    path = tmp_path / "keys"
    path.write_text(f"# the keys\n\nada = {ADA}\nbob={hashed}\n")
    for keys in (api_keys(variable="CHAT_KEYS"), api_keys(file=path), api_keys(file=str(path))):
        app = FastAPI()

        @app.get("/")
        async def who(name: Annotated[str, Depends(keys)]) -> str:
            return name

        client = TestClient(app)
        assert [client.get("/", headers=bearer(key)).json() for key in (ADA, BOB)] == ["ada", "bob"]
        assert client.get("/", headers=bearer(hashed)).status_code == 401


NAMES = st.text("aZ0_.@-é", min_size=1, max_size=6)
VALUES = st.text("aZ0._~+/-", min_size=1, max_size=6)


@given(st.dictionaries(NAMES, st.builds(str.__add__, VALUES, st.sampled_from(["", "=", "=="])), max_size=4))
def test_entries_of_any_keys_are_read_as_they_were_written(keys: dict[str, str]) -> None:
    for separator in (",", "\n", " ,\n"):
        text = separator.join(f"{name}={key}" for name, key in keys.items())
        assert dict(parse_keys(text, "text")) == keys


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "pass one of keys, variable and file"),
        ({"keys": KEYS, "variable": "A"}, "pass one of keys, variable and file"),
        ({"keys": {}}, "keys has no key"),
        ({"variable": "NOT_SET"}, "the variable NOT_SET is not set"),
        ({"variable": "EMPTY"}, "the variable EMPTY has no key"),
        ({"variable": "NAMELESS"}, "entry 2 of the variable NAMELESS has no name: write NAME=KEY"),
        ({"variable": "TWICE"}, "the variable TWICE has two keys with the name 'ada'"),
        ({"file": "/missing/keys"}, "the file /missing/keys cannot be read: .*No such file"),
        ({"keys": {"ada": "short"}}, "key 1 of keys has 5 characters: it must have at least 16"),
        ({"keys": {"ada": "with spaces in the key"}}, "key 1 of keys must have only letters"),
        ({"keys": {"ada": "sha256:123"}}, "a hash is sha256: and 64 hexadecimal digits"),
        ({"keys": {f"{ADA}/": "ada"}}, "name 1 of keys must have 1 to 64 letters"),
        ({"keys": {ADA: "ada"}}, "key 1 of keys has 3 characters"),
        ({"keys": {"a b": ADA}}, "name 1 of keys must have 1 to 64 letters"),
        ({"keys": {"ada": ADA, "eve": ADA}}, "key 2 of keys has two names"),
        ({"keys": KEYS, "max_concurrent": 0}, "max_concurrent = 0: must be at least 1$"),
        ({"keys": KEYS, "max_per_minute": 10**6}, "max_per_minute = 1000000: must be at least 1 and at most 100,000"),
    ],
)
def test_a_mistake_is_refused_in_one_sentence(
    options: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", " ,\n# nothing\n")
    monkeypatch.setenv("NAMELESS", f"ada={ADA},{BOB}")
    monkeypatch.setenv("TWICE", f"ada={ADA},ada={BOB}")
    with pytest.raises(ConfigError, match=problem) as mistake:
        api_keys(**options)
    assert ADA not in str(mistake.value)
    assert BOB not in str(mistake.value)


async def test_no_key_is_shown_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    keys = api_keys(KEYS, max_per_minute=1)
    app = FastAPI(dependencies=[Depends(keys)])

    @app.get("/")
    async def fail() -> None:
        raise ValueError("it failed")

    with caplog.at_level(logging.DEBUG):
        async with asking(app) as http:
            texts = [repr(await http.get("/", headers=bearer(key))) for key in (ADA, ADA, "a-wrong-key-0123456789")]
    shown = "\n".join([caplog.text, *texts, repr(keys), str(keys), json.dumps(app.openapi())])
    assert "it failed" in caplog.text
    assert not [key for key in (ADA, BOB, "a-wrong-key-0123456789") if key in shown]
    assert repr(keys) == "<2 API keys>"


async def test_the_app_of_the_page_admits_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_TOOLKIT_DATA", str(tmp_path))
    names = page("docs/chat-budgets.md").run()
    headers = bearer("replace-this-example-key")
    async with in_process(names["app"]) as http:
        assert (await http.get("/me")).status_code == 401
        assert (await http.get("/me", headers=headers)).json() == "ada"
        response = await http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert response.json()["choices"][0]["message"]["content"] == "HELLO "
        assert "HELLO" in (await http.post("/api/chat", json=UI, headers=headers)).text
        root = bearer("replace-this-example-root")
        assert (await http.post("/admin/keys", json={"name": "eve"}, headers=root)).status_code == 201
        assert (await http.get("/admin/keys", headers=root)).json() == [{"name": "eve"}]
    assert api_keys(dict([names["entry"].split("=")])).running == {"ada": 0}
