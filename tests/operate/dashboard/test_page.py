"""The page in headless Chromium, on a simulated instance.

It needs Chromium, and `pip install playwright axe-playwright-python`. Playwright's own browsers are not needed.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from app_toolkit.control.canary import BeginRelease
from app_toolkit.control.freeze import Freeze, Unfreeze
from app_toolkit.control.operations import AddCandidate, Deploy, Scale
from app_toolkit.control.queries import GetStatus
from benchmarks.dashboard import measure_page
from benchmarks.simulated import UNTRUSTED, SimulatedClient, application, served, simulated
from tests.operate.dashboard.browser import DESKTOP, PHONE, Browser, Operator, Page, chromium, expect, needs_chromium
from tests.patience import wait_until

axe: Any = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="the browser tests need `pip install axe-playwright-python`"
)

pytestmark = [needs_chromium, pytest.mark.slow]

TOKEN = "a-token-of-the-tests"
PAGES = (
    "",
    "traffic",
    "traffic/shop",
    "traffic/search",
    "deployments/shop/m0",
    "deployments/failing/m0",
    "streams",
    "slow",
    "errors",
    "events",
    "logs",
)
SECONDS = 8
"""The time for which updates are measured."""
MOST_S = 0.1
"""CPU time of the main thread that an update may take with 500 deployments."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def instance() -> Iterator[SimulatedClient]:
    with simulated(
        application("shop", autoscaled=True),
        application("search"),
        application("failing"),
        broken={"failing/m0": f"ValueError: {UNTRUSTED}"},
    ) as client:
        client.execute(AddCandidate(application("shop"), share=0.25, tag="next", expected=2))
        client.execute(AddCandidate(application("search"), expected=2))
        client.execute(BeginRelease("search", steps=(10, 50, 100)))  # it has no requests, so it stays
        yield client


@pytest.fixture(scope="module")
def url(instance: SimulatedClient) -> Iterator[str]:
    with served(instance) as url:
        yield url


@pytest.fixture
def operator(browser: Browser, url: str) -> Iterator[Operator]:
    operator = Operator(browser, url)
    yield operator
    operator.leave()


@pytest.mark.parametrize(
    ("scheme", "viewport"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE), ("dark", PHONE)]
)
def test_no_page_violates_an_accessibility_rule(
    browser: Browser, url: str, scheme: str, viewport: dict[str, int]
) -> None:
    operator = Operator(browser, url, color_scheme=scheme, viewport=viewport)
    found = []
    for path in PAGES:
        page = operator.open(path)
        updates = operator.updates()
        wait_until(lambda updates=updates: operator.updates() > updates)
        found += [(path, each["id"], [node["html"] for node in each["nodes"]][:3]) for each in _violations(page)]
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], path
    operator.open("deployments/shop/web").get_by_role("button", name="Scale…").click()
    found += [("dialog", each["id"], each["nodes"][0]["html"]) for each in _violations(operator.page)]
    operator.leave()
    assert not found


def _violations(page: Page) -> list[Any]:
    violations: list[Any] = axe.Axe().run(page).response["violations"]
    return violations


def test_untrusted_text_is_shown_as_text(operator: Operator) -> None:
    page = operator.open("errors")
    expect(page.get_by_text("<img src=x onerror=alert(1)>").first).to_be_visible()
    page = operator.open("logs")
    expect(page.locator(".log").get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    assert page.locator("main img").count() == 0


def test_page_shows_what_fails_first(operator: Operator) -> None:
    page = operator.open("")
    expect(page.locator(".alerts")).to_contain_text("failing/m0")
    expect(page.locator("#pages").get_by_role("link", name="Errors")).to_contain_text("1")
    page.locator(".alerts").get_by_role("link", name="failing/m0").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("failing/m0")
    expect(page.locator(".trouble pre")).to_contain_text("ValueError")


def test_deployment_is_failing_if_one_of_its_routes_fails(browser: Browser) -> None:
    with simulated(application("flaky")) as client, served(client) as url:
        operator = Operator(browser, url)
        page = operator.open("errors")
        expect(page.locator(".problems")).to_contain_text("failing flaky/web")
        expect(page.locator(".problems")).to_contain_text("PUT /items/{item_id}: ")
        expect(page.locator("#health")).to_have_text("failing")
        page = operator.open("")
        expect(page.locator(".alerts")).to_contain_text("failed in the last minute")
        operator.open("deployments/flaky/web")
        expect(page.locator(".lead")).to_contain_text("failed in the last minute")
        expect(operator.open("traffic").get_by_role("row", name="flaky")).to_contain_text("failing")
        operator.leave()


def test_only_a_healthy_deployment_or_application_is_shown_as_failing(operator: Operator) -> None:
    statuses = ["healthy", "starting", "updating", "stopping", "waiting_for_resources", "unhealthy", "failed"]
    shown = operator.open("").evaluate(
        """async (statuses) => {
            const { applicationRow, deploymentRow, state } = await import(new URL("store.js", document.baseURI));
            state.tables.failing["shop/web"] = "GET /: 2 of 2 failed in the last minute";
            return statuses.map((status) => {
                state.tables.deployments["shop/web"] = { status: "healthy" };
                state.tables.applications.shop = { status, deployments: ["shop/web"] };
                const application = applicationRow("shop").status;
                state.tables.deployments["shop/web"] = { status };
                return [application, deploymentRow("shop/web").status];
            });
        }""",
        statuses,
    )
    assert shown == [["failing", "failing"], *([status, status] for status in statuses[1:])]


def test_token_is_asked_for_until_it_is_right(browser: Browser, instance: SimulatedClient) -> None:
    with served(instance, TOKEN) as url:
        operator = Operator(browser, url)
        page = operator.page
        page.get_by_label("Token", exact=True).fill("a-wrong-token-of-someone")
        page.keyboard.press("Enter")
        expect(page.get_by_text("The API refused this token.")).to_be_visible()
        page.get_by_label("Token", exact=True).fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#live")).to_have_text("Live")
        page.reload()  # this tab keeps it
        expect(page.locator("#live")).to_have_text("Live")
        assert TOKEN not in page.url
        operator.leave()


def test_deployment_is_scaled_with_the_keyboard_alone(operator: Operator, instance: SimulatedClient) -> None:
    page = operator.open("")
    page.reload()
    expect(page.locator("#live")).to_have_text("Live")
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.type("shop/web")
    link = page.get_by_role("table", name="Deployments").get_by_role("link", name="shop/web", exact=True)
    _tab_to(page, link)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    button = page.get_by_role("button", name="Scale…")
    _tab_to(page, button)
    page.keyboard.press("Enter")
    expect(page.get_by_role("spinbutton", name="Replicas")).to_be_focused()
    for _ in range(6):  # the focus stays in the dialog, or goes to the browser
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#frame, #top') === null")
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+A")
    page.keyboard.type("3")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("shop/web is scaled to 3")
    expect(page.locator(".lead")).to_contain_text("3 of 3 replicas")
    shop = instance.execute(GetStatus()).application("shop")
    assert shop is not None
    assert {each.name: each.target for each in shop.deployments}["shop/web"] == 3


def _tab_to(page: Page, wanted: Any) -> None:
    for _ in range(60):
        if wanted.evaluate("node => node === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"60 times Tab do not lead to {wanted}")


def test_chart_is_read_with_the_keyboard_and_as_a_table(operator: Operator) -> None:
    page = operator.open("deployments/shop/web")
    chart = page.get_by_role("slider", name="Latency, time")
    wait_until(lambda: int(chart.get_attribute("aria-valuemax")) >= 2)
    chart.focus()
    page.keyboard.press("Home")
    assert "p95" in chart.get_attribute("aria-valuetext")
    first = chart.get_attribute("aria-valuenow")
    page.keyboard.press("ArrowRight")
    assert chart.get_attribute("aria-valuenow") != first
    figure = page.locator("figure", has=chart)
    figure.locator("summary").click()
    expect(figure.get_by_role("columnheader", name="p95")).to_be_visible()


def test_batch_sizes_are_shown_with_their_quantiles_and_their_average(operator: Operator) -> None:
    page = operator.open("deployments/shop/m0")
    figure = page.locator("figure", has=page.get_by_role("slider", name="Batch size, time"))
    expect(figure.locator(".legend")).to_have_text(re.compile(r"^p50\d+p95\d+p99\d+average[\d.]+$"))


def test_refused_command_leaves_the_dialog_open(operator: Operator) -> None:
    page = operator.open("deployments/shop/m0")  # its autoscaler has up to 8 replicas
    page.get_by_role("button", name="Scale…").click()
    page.get_by_role("spinbutton", name="Replicas").fill("900")
    page.get_by_role("dialog").get_by_role("button", name="Scale").click()
    expect(page.get_by_role("alert")).to_contain_text("shop/m0")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_weights_are_changed_after_a_confirmation(operator: Operator, instance: SimulatedClient) -> None:
    page = operator.open("traffic/shop")
    page.get_by_role("button", name="Change weights…").click()
    page.get_by_label("Revision 2, tag next").fill("50")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Change weights").click()
    expect(dialog.get_by_role("alert")).to_have_text("The sum is 125 %, and must be 100 %.")
    page.get_by_label(re.compile(", main")).fill("50")
    dialog.get_by_role("button", name="Change weights").click()
    expect(page.locator("#toasts")).to_contain_text("The weights of shop are changed.")
    expect(page.get_by_role("row", name="2 50 % 50 %")).to_be_visible()


def test_a_frozen_application_says_why(operator: Operator, instance: SimulatedClient) -> None:
    page = operator.open("traffic/failing")
    facts = page.get_by_role("list", name="Facts")
    expect(facts).to_be_hidden()
    instance.execute(Freeze("failing", reason="the sale ends on Monday"))
    expect(facts).to_have_text(re.compile("^frozen since .*: the sale ends on Monday$"))
    instance.execute(Unfreeze("failing"))
    expect(facts).to_be_hidden()


def test_canary_release_is_paused_and_aborted(operator: Operator, instance: SimulatedClient) -> None:
    page = operator.open("traffic/search")
    expect(page.locator(".steps")).to_contain_text("10 %now")
    expect(page.get_by_role("button", name="Promote…")).to_be_visible()
    expect(page.get_by_role("button", name="Change weights…")).to_be_hidden()  # the release sets them
    page.get_by_role("button", name="Pause…").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator(".steps")).to_contain_text("10 %paused")
    page.get_by_role("button", name="Abort…").click()
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    expect(page.locator("#toasts")).to_contain_text("The main revision of search gets all requests.")
    search = instance.execute(GetStatus()).application("search")
    assert search is not None
    assert [each.share for each in search.traffic if not each.is_removed] in ([], [1.0])


def test_application_is_rolled_back_after_a_confirmation(operator: Operator, instance: SimulatedClient) -> None:
    def healthy(classes: int) -> bool:
        blog = instance.execute(GetStatus()).application("blog")
        return blog is not None and blog.status == "healthy" and len(blog.deployments) == 1 + classes

    for classes in (1, 2):
        instance.execute(Deploy(application("blog", classes=classes)))
        wait_until(lambda classes=classes: healthy(classes))
    instance.execute(Scale("blog/web", 3))
    page = operator.open("traffic/blog")
    expect(page.locator(".lead")).to_contain_text("revision 3")  # the API refuses a page that is behind
    page.get_by_role("button", name="Roll back…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Roll blog back to revision 1?")
    expect(dialog).to_contain_text("replaces revision 3")
    dialog.get_by_role("button", name="Roll back").click()
    expect(page.locator("#toasts")).to_contain_text("blog returns to revision 1.")
    wait_until(lambda: healthy(1))


def test_page_is_paused_and_goes_on_with_what_happened_meanwhile(operator: Operator) -> None:
    page = operator.open("")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live")).to_have_text("Paused")
    sample = page.locator("html").get_attribute("data-sample")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#live")).to_have_text("Live")
    wait_until(lambda: page.locator("html").get_attribute("data-sample") != sample)


def test_page_is_live_again_after_the_admin_server_was_replaced(browser: Browser, instance: SimulatedClient) -> None:
    with served(instance) as url:
        operator = Operator(browser, url)
        expect(operator.page.locator("#live")).to_have_text("Live")
    expect(operator.page.locator("#live")).to_have_text("Reconnecting")
    expect(operator.page.locator("#announcement")).to_have_text("The connection to the instance is lost.")
    with served(instance, port=int(url.rpartition(":")[2])):
        expect(operator.page.locator("#live")).to_have_text("Live")
    operator.leave()


def test_update_with_500_deployments_takes_less_than_100_ms(browser: Browser) -> None:
    applications = [application(f"app{number}", classes=4, replicas=10) for number in range(100)]
    with simulated(*applications) as client, served(client) as url:
        shown = measure_page(browser, url, "overview", "", SECONDS)
    assert shown.script_s > 0
    assert shown.cpu_s < MOST_S, shown
