"""The page in headless Chromium (playwright), on an instance on Ray with a load."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.operations import AddCandidate
from app_toolkit.control.promotion import Abort
from app_toolkit.control.queries import GetStatus
from app_toolkit.operate.dashboard.history import WINDOW_S
from tests.cluster import Cluster, Served
from tests.operate.dashboard.browser import Operator, Page, chromium, expect, needs_chromium
from tests.patience import wait_until

pytestmark = [needs_chromium, pytest.mark.slow]

EACH_S = 0.05
"""Seconds between two requests of the load."""
SAMPLES = 9
"""Updates that are compared: more than the window of the rates has."""


@pytest.fixture(scope="module")
def shop(cluster: Cluster) -> Iterator[Served]:
    served = cluster.deploy("targets:fast", held=False)
    cluster.update(served.spec, HTTPOptions(admin=True, admin_port=0), held=False)
    yield served
    cluster.update(served.spec, HTTPOptions(admin=False), held=False)
    served.delete()
    wait_until(lambda: cluster.client.execute(GetStatus()).admin_url is None)


@pytest.fixture(scope="module")
def url(cluster: Cluster, shop: Served) -> str:
    wait_until(lambda: cluster.client.execute(GetStatus()).admin_url)
    return str(cluster.client.execute(GetStatus()).admin_url)


@pytest.fixture
def operator(url: str) -> Iterator[Operator]:
    with chromium() as browser:
        operator = Operator(browser, url)
        yield operator
        operator.leave()


@contextmanager
def load(served: Served) -> Iterator[None]:
    """Send requests during the block."""
    ended = threading.Event()

    def send() -> None:
        with served.client() as client:
            while not ended.wait(EACH_S):
                assert client.get("/kind").status_code == 200

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def total(url: str, application: str) -> int:
    """Return the requests of the application that have ended, as Prometheus would get them."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = [
        each.value
        for each in samples
        if each.name == "app_toolkit_requests_total" and each.labels["application"] == application
    ]
    return int(sum(found))


def sampled_at(page: Page) -> float:
    """Return when the numbers that the page shows were taken, in seconds since 1970."""
    return float(page.evaluate("document.documentElement.dataset.sample || 0"))


def test_numbers_under_load_are_those_of_the_metrics_after_one_update(
    operator: Operator, url: str, shop: Served
) -> None:
    name = shop.spec.name
    page = operator.open("")
    row = page.get_by_role("table", name="Deployments").get_by_role("row", name=f"{name}/")
    shown: list[tuple[float, int, int, str]] = []  # time, bounds of the total, rate
    with load(shop):
        wait_until(lambda: total(url, name) > 0)
        while len(shown) < SAMPLES:
            before, now = total(url, name), time.time()
            wait_until(lambda now=now: sampled_at(page) > now)  # the next update
            at, texts = page.evaluate(
                "row => [document.documentElement.dataset.sample, [...row.cells].map(cell => cell.textContent)]",
                row.element_handle(),
            )
            after = total(url, name)
            assert before <= int(texts[10].replace(",", "")) <= after
            shown.append((float(at), before, after, texts[2]))
    at, before, after, rate = shown[-1]
    earlier = [each for each in shown if each[0] <= at - WINDOW_S][-1]
    seconds = at - earlier[0]
    rounding = 0.5
    assert (before - earlier[2]) / seconds - rounding <= float(rate) <= (after - earlier[1]) / seconds + rounding
    wait_until(lambda: int(row.locator("td").nth(9).inner_text().replace(",", "")) == total(url, name))


def test_button_scales_a_deployment(operator: Operator, cluster: Cluster, shop: Served) -> None:
    deployment: Any = shop.status()["deployments"][0]
    page = operator.open(f"deployments/{deployment['name']}")
    page.get_by_role("button", name="Scale…").click()
    page.get_by_role("spinbutton", name="Replicas").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Scale").click()
    expect(page.locator("#toasts")).to_contain_text("is scaled to 2")
    expect(page.locator(".lead")).to_contain_text("2 of 2 replicas running")
    shop.wait(lambda now: now["deployments"][0]["target"] == 2 and now["deployments"][0]["counts"] == {"running": 2})


def test_button_shifts_weights_to_a_live_revision(operator: Operator, cluster: Cluster, shop: Served) -> None:
    name = shop.spec.name
    number = cluster.client.execute(AddCandidate(shop.spec, share=0.0))
    page = operator.open(f"traffic/{name}")
    page.get_by_role("button", name="Change weights…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(f"Revision {number}").fill("25")
    dialog.get_by_label(re.compile(", main")).fill("75")
    dialog.get_by_role("button", name="Change weights").click()
    expect(page.locator("#toasts")).to_contain_text(f"The weights of {name} are changed.")
    shop.wait(lambda now: [each["share"] for each in now["traffic"]] == [0.75, 0.25])
    cluster.client.execute(Abort(name))
    shop.wait(lambda now: not now["traffic"])
