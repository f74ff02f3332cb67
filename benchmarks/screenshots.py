"""Take the screenshots of docs/admin.md: of `benchmarks/apps/shop.py` on Ray, with a load and a canary release.

python -m benchmarks.screenshots

It needs Chromium and `pip install playwright`, and takes about three minutes.
"""

import argparse
import asyncio
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import ray
from playwright.sync_api import Browser, sync_playwright
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from app_toolkit import status
from app_toolkit.control.status import CanaryStatus, InstanceStatus

ROOT = Path(__file__).parents[1]
SHOP = ROOT / "benchmarks" / "apps" / "shop.py"
IMAGES = ROOT / "docs" / "images"

LARGEST = 200_000
"""Bytes of an image."""

WARM_S = 75
"""Seconds of load before the first screenshot, so that the charts have a past."""

PERIOD_S = 60
"""The rate of requests rises and falls with this period."""

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
SHOTS: list[tuple[str, str, str, dict[str, int]]] = [
    ("overview", "", "light", DESKTOP),
    ("deployment", "deployments/shop/embedder", "light", DESKTOP),
    ("canary", "traffic/shop", "light", DESKTOP),
    ("mobile-dark", "", "dark", PHONE),
]
"""The name of the image, the page, the colours and the size."""


def command(*words: str) -> None:
    """Run an `app-toolkit` command on the Ray of this process. Raises `SystemExit` if it fails."""
    line = [sys.executable, "-m", "app_toolkit.cli", *words, "--address", ray.get_runtime_context().gcs_address]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"app-toolkit {' '.join(words)} failed:\n{done.stdout}{done.stderr}")


def wait(condition: Callable[[InstanceStatus], bool]) -> InstanceStatus:
    """Return the first status for which the condition holds."""
    while not condition(found := status()):
        time.sleep(1)
    return found


def release(found: InstanceStatus) -> CanaryStatus:
    """Return the canary release of the shop."""
    application = found.application("shop")
    assert application is not None
    assert application.canary is not None
    return application.canary


@contextmanager
def load(url: str) -> Iterator[None]:
    """Send requests during the block: a few each second to all routes, of which some fail."""
    loop = asyncio.new_event_loop()
    sending = loop.create_task(_send(url))

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(sending)
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(sending.cancel)
        thread.join()


async def _send(url: str) -> None:
    limits = httpx.Limits(max_connections=200)
    async with (
        httpx.AsyncClient(base_url=url, timeout=30, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as tasks,
    ):

        async def item() -> None:
            name = "lamp" if random.random() < 0.005 else f"tea-{random.randrange(100)}"
            await client.get(f"/items/{name}")

        async def search() -> None:
            await client.get("/search", params={"query": "green tea leaves"})

        async def stream() -> None:
            await client.get("/chat")

        async def talk() -> None:
            with suppress(ConnectionClosed, OSError):
                async with connect(f"{url.replace('http', 'ws')}/chat/socket", proxy=None) as websocket:
                    for _ in range(60):
                        await websocket.send("hello")
                        await websocket.recv()
                        await asyncio.sleep(0.5)

        async def repeat(per_s: float, send: Callable[[], Awaitable[None]]) -> None:
            async def once() -> None:
                with suppress(httpx.HTTPError):
                    await send()

            while True:
                wave = 1 + 0.5 * math.sin(time.monotonic() * 2 * math.pi / PERIOD_S)
                await asyncio.sleep(random.expovariate(per_s * wave))
                tasks.create_task(once())

        for per_s, send in ((30, item), (20, search), (0.6, stream), (0.15, talk)):
            tasks.create_task(repeat(per_s, send))


def shoot(browser: Browser, url: str, name: str, path: str, scheme: Any, viewport: Any) -> Path:
    """Take one screenshot. Raises `SystemExit` if it is too large for the pages."""
    page = browser.new_page(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"{url}/#/{path}")
    page.locator("#live.on").wait_for()
    page.wait_for_timeout(3_000)  # a few updates
    page.evaluate("document.activeElement.blur()")
    image = IMAGES / f"dashboard-{name}.png"
    page.screenshot(path=image)
    page.close()
    if image.stat().st_size > LARGEST:
        raise SystemExit(f"{image.name} has {image.stat().st_size:,} bytes: the limit is {LARGEST:,}")
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the screenshots of docs/admin.md.")
    parser.add_argument("--chromium", default=os.environ.get("APP_TOOLKIT_TEST_CHROMIUM") or shutil.which("chromium"))
    arguments = parser.parse_args()
    if arguments.chromium is None:
        raise SystemExit("there is no chromium on PATH: name its executable with --chromium")
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        command("deploy", str(SHOP), "--name", "shop", "--port", "0", "--wait", "--admin-port", "0")
        found = wait(lambda status: status.admin_url is not None)
        admin, url = str(found.admin_url), str(found.url)
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        with load(url):
            time.sleep(WARM_S)
            taken = [shoot(browser, admin, *shot) for shot in SHOTS if shot[0] != "canary"]
            next_shop = Path(folder) / SHOP.name
            next_shop.write_text(SHOP.read_text().replace("SLOWDOWN = 1.0", "SLOWDOWN = 1.05"))
            command("deploy", str(next_shop), "--name", "shop", "--traffic", "0", "--wait")
            guards = ("--guard", "error_rate<2%", "--guard", "p95<1.5x")
            command("rollout", "shop", "--steps", "10,25,50,100", "--every", "30s", *guards)
            wait(lambda status: release(status).step == 2)
            time.sleep(15)
            taken += [shoot(browser, admin, *shot) for shot in SHOTS if shot[0] == "canary"]
        browser.close()
        command("shutdown")
    ray.shutdown()
    for image in taken:
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
