"""Logs of an app have the id of the request, unless the app configures logging itself."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app_toolkit.observability import tracebacks
from app_toolkit.observability.context import REQUEST_ID
from app_toolkit.observability.logs import show_logs


@contextmanager
def as_it_begins() -> Iterator[None]:
    """Logging as a process begins with it: pytest's own handlers come with each phase of a test."""
    root, last = logging.getLogger(), logging.lastResort
    level, handlers = root.level, root.handlers
    root.handlers = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logging.lastResort = last
        root.handlers = handlers
        root.setLevel(level)


def test_a_record_has_its_time_and_the_id_of_its_request(capsys: pytest.CaptureFixture[str]) -> None:
    with as_it_begins():
        show_logs("info")
        token = REQUEST_ID.set("5f1c-2a")
        logging.getLogger("shop").info("sold %s", "tea")
        REQUEST_ID.reset(token)
        logging.getLogger("shop").info("closed")
        logging.getLogger("shop").debug("unheard")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO shop \[5f1c-2a\]: sold tea", first)
    assert second.endswith(" INFO shop: closed")


def test_a_traceback_names_the_files_of_an_application_by_their_paths_in_its_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tracebacks, "unpacked", "")
    (tmp_path / "shop").mkdir()
    shop = tmp_path / "shop" / "prices.py"
    shop.write_text("1 / 0\n")
    tracebacks.shorten_paths(tmp_path)
    with as_it_begins():
        show_logs("info")
        try:
            exec(compile(shop.read_text(), str(shop), "exec"))
        except ZeroDivisionError:
            logging.getLogger("shop").exception("it failed")
    said = capsys.readouterr().err
    assert '  File "shop/prices.py", line 1, in <module>\n    1 / 0\n' in said
    assert f'File "{__file__}"' in said


def test_an_app_that_configures_logging_later_has_it_its_way(capsys: pytest.CaptureFixture[str]) -> None:
    with as_it_begins():
        show_logs("info")
        logging.basicConfig(format="mine: %(message)s")
        logging.getLogger("shop").info("sold")
    assert capsys.readouterr().err == "mine: sold\n"


def test_a_level_that_the_app_has_set_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with as_it_begins():
        logging.getLogger().setLevel(logging.ERROR)
        show_logs("info")
        logging.getLogger("shop").warning("unheard")
    assert capsys.readouterr().err == ""
