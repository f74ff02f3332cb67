"""Open WebUI in headless Chromium. Its server is started here, and has two connections to the application."""

import asyncio
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from cases import received, run, until_running, until_stopped
from playwright.async_api import Page, async_playwright, expect

START_S = 180.0
WAIT_MS = 30_000.0
PATIENCE_S = 90.0
RESPONSES = "responses"
"""Before the names of models that Open WebUI calls with the Responses API."""
SHOTS = os.environ.get("OPEN_WEBUI_SCREENSHOTS")
"""A folder for a screenshot of each case."""


@contextmanager
def serving(url: str) -> Iterator[str]:
    """Run Open WebUI with connections to the application until the end of the block, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    api = f"{url}/webui/v1"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        environ = os.environ | {
            "DATA_DIR": folder,
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": secrets.token_hex(),
            "OPENAI_API_BASE_URLS": f"{api};{api}",
            "OPENAI_API_KEYS": "any;any",
            "OPENAI_API_CONFIGS": json.dumps({"0": {}, "1": {"api_type": "responses", "prefix_id": RESPONSES}}),
            "ENABLE_OLLAMA_API": "False",
            "TASK_MODEL_EXTERNAL": "titles",
            "ENABLE_TAGS_GENERATION": "False",
            "ENABLE_FOLLOW_UP_GENERATION": "False",
            "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
            "OFFLINE_MODE": "True",
        }
        command = [str(Path(sys.executable).parent / "open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=output, stderr=output)
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + START_S
            while not _is_up(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    raise RuntimeError(f"Open WebUI did not start: {output.read()[-500:]!r}")
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait()


def _is_up(address: str) -> bool:
    try:
        with urlopen(f"{address}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, TimeoutError, ConnectionError):
        return False


@asynccontextmanager
async def opened() -> AsyncIterator[Page]:
    """Yield a page with a new chat."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = await browser.new_page()
        page.set_default_timeout(WAIT_MS)
        try:
            await page.goto(WEBUI)
            yield page
        finally:
            await browser.close()


async def close_greeting() -> None:
    """Close the dialog that a user sees once. The first page also takes longer than the next ones."""
    async with opened() as page:
        page.set_default_timeout(START_S * 1000)
        greeting = page.get_by_role("button", name="Okay, Let's Go!")
        await greeting.click()
        await greeting.wait_for(state="detached")


@asynccontextmanager
async def page_of(name: str, model: str) -> AsyncIterator[Page]:
    """Yield a page with a new chat, for which a model has been chosen."""
    async with opened() as page:
        try:
            await page.locator("#model-selector-model-button").click()
            await page.get_by_label(f"Select {model} model", exact=True).click()
            yield page
        finally:
            if SHOTS:
                await page.screenshot(path=f"{SHOTS}/{name}.png")


async def send(page: Page, text: str) -> None:
    await page.locator("#chat-input").click()
    await page.keyboard.type(text)
    await page.keyboard.press("Enter")


async def shows(page: Page, text: str | re.Pattern[str]) -> None:
    await expect(page.locator("#response-content-container").last).to_contain_text(text, timeout=WAIT_MS)


async def has_ended(page: Page) -> None:
    await page.get_by_role("button", name="Regenerate").last.wait_for()


async def models(url: str, _: str) -> None:
    async with page_of("models", "echo") as page:
        await page.locator("#model-selector-model-button").click()
        for name in ("echo", "agent", f"{RESPONSES}.agent"):
            await page.get_by_label(f"Select {name} model", exact=True).wait_for()


async def messages(url: str, _: str) -> None:
    async with page_of("messages", "echo") as page:
        for text in ("hello ä world", "second"):
            before = await received(url, "echo")
            await send(page, text)
            await shows(page, text)
            await has_ended(page)
            assert await received(url, "echo") == before + 1
        await page.reload()
        await shows(page, "second")


async def title(url: str, _: str) -> None:
    async with page_of("title", "echo") as page:
        await send(page, "hello")
        await page.get_by_text("A title by the small model").first.wait_for()


async def reasoning(url: str, _: str) -> None:
    async with page_of("reasoning", "echo") as page:
        await send(page, "yes /reason")
        await shows(page, "yes")
        await page.get_by_text(re.compile("Thought for")).click()
        await shows(page, "let me think")


async def stop(url: str, _: str) -> None:
    async with page_of("stop", "echo") as page:
        word = f"w{secrets.token_hex(4)}"
        await send(page, f"{word} /forever")
        await until_running(url, word)
        await shows(page, word)
        await page.get_by_role("button", name="Stop").click()
        await until_stopped(url, word)
        await has_ended(page)


async def regenerate(url: str, _: str) -> None:
    async with page_of("regenerate", "echo") as page:
        await send(page, "again")
        await shows(page, "again")
        await page.get_by_role("button", name="Regenerate").last.click()
        await page.get_by_text("Try Again").click()
        await page.get_by_text("2/2").wait_for()
        await shows(page, "again")


async def tools_that_the_model_runs(url: str, _: str) -> None:
    await _agent(url, "agent")


async def tools_that_the_model_runs_with_the_responses_api(url: str, _: str) -> None:
    await _agent(url, f"{RESPONSES}.agent")


async def error(url: str, _: str) -> None:
    async with page_of("error", "echo") as page:
        await send(page, "please /fail")
        await page.get_by_text("the model was asked to fail").first.wait_for()


async def _agent(url: str, model: str) -> None:
    """Each message is one request, although the model calls tools."""
    async with page_of(model, model) as page:
        for text in ("What is x?", "And now?"):
            before = await received(url, "agent")
            await send(page, text)
            await shows(page, re.compile(r"I look\.\s*I found one\."))
            await has_ended(page)
            await asyncio.sleep(1)  # a further request would have been sent by then
            assert await received(url, "agent") == before + 1


with serving(sys.argv[1]) as WEBUI:
    asyncio.run(close_greeting())
    run(
        [
            *(models, messages, title, reasoning, stop, regenerate, error),
            *(tools_that_the_model_runs, tools_that_the_model_runs_with_the_responses_api),
        ],
        PATIENCE_S,
    )
