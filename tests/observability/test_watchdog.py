"""An event loop that is blocked is reported with the line that blocks it."""

import asyncio
import importlib.util
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from app_toolkit.observability.watchdog import Watchdog
from tests.patience import PATIENCE_S

SHOP = """\
import pdb, threading, time

began, go, times = threading.Event(), threading.Event(), []

def block():
    times.append(time.monotonic())
    began.set()
    go.wait(60)
    times.append(time.monotonic())

class Held:
    def readline(self):
        began.set()
        go.wait(60)
        return "continue\\n"

def debug():
    import io
    pdb.Pdb(stdin=Held(), stdout=io.StringIO(), nosigint=True, readrc=False).set_trace()
    return 1
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("shop", tmp_path / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def watched(loop: asyncio.AbstractEventLoop) -> Iterator[Watchdog]:
    """A loop that turns on a thread of its own, and its watchdog."""
    watchdog = Watchdog("shop")
    loop.call_soon(watchdog.start, loop)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield watchdog
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        watchdog.stop()
        loop.close()


def until(condition: Callable[[], object], what: str) -> None:
    done = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        done.wait(0.02)
    raise AssertionError(what)


def test_a_blocked_loop_is_one_warning_with_its_line_and_one_when_it_goes_on(
    shop: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "app_toolkit.watchdog")
    loop = asyncio.new_event_loop()
    with watched(loop) as watchdog:
        loop.call_soon_threadsafe(shop.block)
        until(lambda: caplog.messages, "the block is reported")
        blocked = watchdog.blocked()
        assert blocked is not None
        assert blocked.seconds >= 1
        assert blocked.at == "shop.py:8 in block"
        assert not watchdog.is_debugging
        shop.go.set()
        until(lambda: len(caplog.messages) > 1, "the loop turns again")
    first, last = caplog.messages
    # It may be reported late, but not before a second is over.
    assert re.match(r"the event loop of shop is blocked for [1-9]\d* s at shop\.py:8 in block", first)
    found = re.fullmatch(r"the event loop of shop was blocked for ([\d.]+) s", last)
    assert found is not None
    began, ended = shop.times
    assert float(found[1]) >= round(ended - began, 1) > 1, "all of it, not only what followed the first check"


def test_a_loop_that_a_debugger_holds_is_not_reported(shop: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "app_toolkit.watchdog")
    loop = asyncio.new_event_loop()
    with watched(loop) as watchdog:
        loop.call_soon_threadsafe(shop.debug)
        assert shop.began.wait(PATIENCE_S)
        assert watchdog.is_debugging
        threading.Event().wait(2.2)  # longer than a block may last without a warning
        shop.go.set()
        until(lambda: not watchdog.is_debugging, "the debugger lets go")
    assert not caplog.messages
    assert sys.gettrace() is None


def test_watchdog_reports_no_running_loop_and_ends_with_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "app_toolkit.watchdog")
    loop = asyncio.new_event_loop()
    name = "app-toolkit watchdog shop"
    with watched(loop):
        until(lambda: any(thread.name == name for thread in threading.enumerate()), "it watches")
        threading.Event().wait(1.2)
    until(lambda: not any(thread.name == name for thread in threading.enumerate()), "it ends")
    assert not caplog.messages
