"""Gradio: an interface mounted on an app, its own client, and the requests of its page in a browser."""

import asyncio
import contextvars
import json
import re
import threading
import uuid
from typing import Any, TypeVar

import aiohttp
import gradio
from fastapi import FastAPI
from gradio_client import Client
from pins import ONE

from app_toolkit import DeploymentConfig, Toolkit

A = TypeVar("A", bound=FastAPI)


def with_interface(app: A) -> A:
    def greet(name: str) -> str:
        return f"Hello {name}"

    interface = gradio.Interface(greet, "text", "text", api_name="greet")
    gradio.mount_gradio_app(app, interface, path="/ui")
    return app


app = with_interface(FastAPI())
pinned = with_interface(Toolkit(deployment=ONE))
sticky = with_interface(Toolkit(deployment=DeploymentConfig(name="app", affinity="header:x-session, cookie")))


def calls(url: str, number: int) -> None:
    # Gradio's client keeps no cookies.
    client = Client(f"{url}/ui", headers={"x-session": f"{number}"}, verbose=False, analytics_enabled=False)
    try:
        for count in range(3):
            said = client.predict(f"{number}-{count}", api_name="/greet")
            assert said == f"Hello {number}-{count}", said
    finally:
        client.close()


async def interface(url: str, number: int) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        try:
            calls(url, number)
        except BaseException as error:
            loop.call_soon_threadsafe(settle, error)
        else:
            loop.call_soon_threadsafe(settle, None)

    def settle(error: BaseException | None) -> None:
        if done.done():  # this client has timed out
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    # Not a thread of a pool: a client whose event stream went to the wrong worker waits forever and keeps its thread.
    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
    await done


async def page(url: str, number: int) -> None:
    # A browser keeps cookies, also those of an IP address.
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), raise_for_status=True) as session:
        async with session.get(f"{url}/ui/") as response:
            found = re.search(r"window\.gradio_config = (\{.*?\});</script>", await response.text())
        assert found
        config = json.loads(found[1])
        queue = f"{config['root']}{config['api_prefix']}/queue"
        [greet] = [each["id"] for each in config["dependencies"] if each["api_name"] == "greet"]
        tab = uuid.uuid4().hex[:10]
        for count in range(3):
            job = {"data": [f"{number}-{count}"], "fn_index": greet, "session_hash": tab, "event_data": None}
            async with session.post(f"{queue}/join", json=job) as response:
                id = (await response.json())["event_id"]
            async with session.get(f"{queue}/data", params={"session_hash": tab}) as stream:
                async for line in stream.content:
                    message: dict[str, Any] = json.loads(line.removeprefix(b"data: ") if line.strip() else "{}")
                    if message.get("msg") == "process_completed":
                        break
            assert message["event_id"] == id, message
            assert message["output"]["data"] == [f"Hello {number}-{count}"], message
