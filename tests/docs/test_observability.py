"""What the page about observability says about the events of the controller."""

import inspect
import re
from typing import get_args

from app_toolkit.control import replica_state
from app_toolkit.control.reconcile import Action

from .pages import ROOT, page

PAGE = page("docs/observability.md").part("Who restarted a replica?")


def test_the_page_explains_events_that_there_are() -> None:
    there = {each.__name__ for each in get_args(Action)}
    there |= {name for name, each in vars(replica_state).items() if inspect.isclass(each)}
    logged = r'(?:(?:event_log\.append|ChangeEvent)\([^"]*(?:"")?[^"]*|yield )"([A-Z]\w+)"'
    for module in (ROOT / "app_toolkit" / "control").glob("*.py"):
        there |= set(re.findall(logged, module.read_text("utf-8")))
    rows = [line for line in PAGE.text.splitlines() if line.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])}
    assert explained > {"Applied", "Scaled", "Exited", "Kill"}
    assert explained <= there
    (shown,) = PAGE.shown("text")
    assert {line.split("  ")[2].split(":")[0] for line in shown.splitlines()} <= explained
