"""Gradio: an interface mounted on an app, and its own client."""

import asyncio
from typing import TypeVar

import gradio
from fastapi import FastAPI
from gradio_client import Client
from pins import ONE

from app_toolkit import Toolkit

A = TypeVar("A", bound=FastAPI)


def with_interface(app: A) -> A:
    def greet(name: str) -> str:
        return f"Hello {name}"

    interface = gradio.Interface(greet, "text", "text", api_name="greet")
    gradio.mount_gradio_app(app, interface, path="/ui")
    return app


app = with_interface(FastAPI())
pinned = with_interface(Toolkit(deployment=ONE))


def calls(url: str, number: int) -> None:
    client = Client(f"{url}/ui", verbose=False, analytics_enabled=False)
    try:
        for count in range(3):
            said = client.predict(f"{number}-{count}", api_name="/greet")
            assert said == f"Hello {number}-{count}", said
    finally:
        client.close()


async def interface(url: str, number: int) -> None:
    await asyncio.to_thread(calls, url, number)
