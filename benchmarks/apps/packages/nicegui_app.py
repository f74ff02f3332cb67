"""NiceGUI: a page mounted on an app. The client sends the requests of the page in a browser."""

import ast
import asyncio
import html
import json
import re
import uuid
from typing import Any, TypeVar
from urllib.parse import urlencode, urljoin

import aiohttp
import socketio
from fastapi import FastAPI
from nicegui import ui
from pins import BY_COOKIE, ONE

from app_toolkit import Toolkit

A = TypeVar("A", bound=FastAPI)


@ui.page("/")
def counter(name: str) -> None:
    clicks = 0

    def click() -> None:
        nonlocal clicks
        clicks += 1
        label.set_text(f"{name}: {clicks}")

    label = ui.label(name)
    ui.button("Count", on_click=click)


def with_pages(app: A) -> A:
    ui.run_with(app, mount_path="/ui")
    return app


app = with_pages(FastAPI())
pinned = with_pages(Toolkit(deployment=ONE))
sticky = with_pages(Toolkit(deployment=BY_COOKIE))


def written(pattern: str, text: str) -> str:
    """What the page has at the group of this pattern."""
    found = re.search(pattern, text)
    assert found, text
    return html.unescape(found[1])


async def page(url: str, number: int) -> None:
    updates: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    # A browser keeps cookies, also those of an IP address.
    session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
    client = socketio.AsyncClient(reconnection=False, http_session=session)

    @client.on("update")
    async def updated(elements: dict[str, Any]) -> None:
        await updates.put(elements)

    try:
        async with session.get(f"{url}/ui/", params={"name": f"{number}"}) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
        elements = json.loads(written(r"String\.raw`(.*?)`", text))
        [button] = [id for id, element in elements.items() if element["tag"] == "q-btn"]
        [label] = [id for id, element in elements.items() if element.get("text") == f"{number}"]
        # The page has both as Python writes them.
        query = ast.literal_eval(written(r"query: (\{.*?\}),\n", text))
        transports = ast.literal_eval(written(r"transports: (\[.*?\]),\n", text))
        script = written(r'src="([^"]*/nicegui\.js)"', text)
        async with session.get(urljoin(url, script)) as response:
            assert response.status == 200

        query |= {"document_id": str(uuid.uuid4()), "tab_id": str(uuid.uuid4()), "old_tab_id": None}
        sent = urlencode({name: each if isinstance(each, str) else json.dumps(each) for name, each in query.items()})
        await client.connect(f"{url}?{sent}", socketio_path="/ui/_nicegui_ws/socket.io", transports=transports)
        for clicks in range(1, 4):
            listener = elements[button]["events"][0]["listener_id"]
            event = {"id": int(button), "client_id": query["client_id"], "listener_id": listener, "args": []}
            await client.emit("event", event)
            update = await asyncio.wait_for(updates.get(), 10)
            assert update[label]["text"] == f"{number}: {clicks}", update
    finally:
        await client.disconnect()
        await session.close()
