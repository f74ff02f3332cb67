"""The examples of docs/deployments.md and docs/handles.md do what they say.

They run on a data plane of their own, in another thread.
"""

import asyncio
import inspect
import re
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from app_toolkit.config.models import CallOptions
from app_toolkit.declare.planning import find
from tests.exchange.deployments import served_elsewhere
from tests.patience import PATIENCE_S

from .pages import Page, page

DEPLOYMENTS, HANDLES = page("docs/deployments.md"), page("docs/handles.md")


def rows(page: Page, heading: str) -> dict[str, str]:
    """The first two columns of the table below a heading."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page.below(heading), re.MULTILINE))


def test_the_shop_works_as_it_stands() -> None:
    page = SimpleNamespace(**DEPLOYMENTS.run())
    assert [each.name for each in find(page.app)] == ["writer", "scorer", "editor"]
    assert [each.name for each in find(page.tools)] == ["nightly"]
    assert (page.big.name, page.big.config.num_replicas, page.big.config.resources.num_gpus) == ("big", 4, 0.5)
    asyncio.run(page.test_a_reply_has_a_word_for_each_word())
    with served_elsewhere(), TestClient(page.app) as client:
        assert client.post("/reply", params={"prompt": "two words"}).json() == ["small two", "small words"]
        assert client.get("/where").json() == "app"
        assert client.get("/best", params={"prompt": "one longest two"}).json() == "small longest"


@pytest.mark.parametrize(
    "example", ["ordinary", "in_a_thread", "two_at_a_time", "two_in_a_thread", "one_into_another", "hasty", "script"]
)
def test_every_way_to_call_works(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    # A busy machine may take longer than a reader of the page would wait.
    patient = Page(HANDLES.name, re.sub(r"(?<=timeout_s=)\d\b", str(PATIENCE_S), HANDLES.text))
    with served_elsewhere():
        function = patient.run()[example]
        if inspect.iscoroutinefunction(function):
            asyncio.run(function())
        else:
            function()
    assert capsys.readouterr().out == ("2\nTwo Words\n" if example == "script" else "")


def test_no_example_is_left_out() -> None:
    defined = re.findall(r"^(?:async )?def (\w+)\(\)", HANDLES.code, re.MULTILINE)
    tested = test_every_way_to_call_works.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert defined == tested


def test_the_page_lists_every_option_of_a_call() -> None:
    assert rows(HANDLES, "`options`: change how calls are made").keys() == CallOptions.model_fields.keys()
