"""Gradio: an interface mounted on an app, and its own client."""

import asyncio
import contextvars
import threading
from typing import TypeVar

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
