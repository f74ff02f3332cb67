"""All records and output of a process are in its log, whatever the app and its handlers do."""

import io
import json
import logging
import logging.config
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app_toolkit.observability.context import REQUEST_ID
from app_toolkit.observability.log_formats import MOST_BYTES
from app_toolkit.observability.logs import attach_fields
from app_toolkit.observability.process_log import ProcessLog
from app_toolkit.observability.secrets import add_secrets

logger = logging.getLogger("shop")


class Disk:
    """What is written, unless it is full."""

    def __init__(self) -> None:
        self.text = ""
        self.is_full = False

    def write(self, lines: str) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.text += lines

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines() if line]

    @property
    def messages(self) -> list[str]:
        return [record["message"] for record in self.records]


@contextmanager
def logging_to(disk: Disk, level: str = "info", *, output: bool = False) -> Iterator[ProcessLog]:
    log = ProcessLog(disk.write, level)
    attach_fields()
    log.begin(output=output)
    try:
        yield log
    finally:
        log.close()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """What an app configures holds until the end of its test."""
    root = logging.getLogger()
    before = root.level, root.handlers[:], logger.level, logger.handlers[:], logger.propagate
    root.setLevel(logging.INFO)
    yield
    root.level, root.handlers, logger.level, logger.handlers, logger.propagate = before
    for each in (root, logger):
        each.setLevel(each.level)
    logger.disabled = False


def test_record_is_written_although_its_logger_does_not_propagate(disk: Disk) -> None:
    with logging_to(disk):
        logger.propagate = False
        logger.addHandler(logging.NullHandler())
        logger.info("sold %s", "tea")
    logger.info("after the end")
    assert disk.messages == ["sold tea"]


def test_record_is_written_although_the_app_replaces_all_handlers(disk: Disk) -> None:
    with logging_to(disk):
        null = {"class": "logging.NullHandler"}
        logging.config.dictConfig(
            {"version": 1, "disable_existing_loggers": False, "handlers": {"n": null}, "root": {"handlers": ["n"]}}
        )
        logging.basicConfig(force=True, handlers=[])
        logger.warning("sold")
    assert disk.messages == ["sold"]


def test_record_below_the_level_and_of_a_disabled_logger_is_not_written(disk: Disk) -> None:
    with logging_to(disk, "warning"):
        logger.info("below the level")
        logger.setLevel(logging.ERROR)
        logger.warning("below that of the logger")
        logger.disabled = True
        logger.error("disabled")
    assert disk.messages == []


def test_handler_that_raises_or_filters_keeps_no_record_from_the_log(disk: Disk) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("broken handler")

    with logging_to(disk):
        logger.addHandler(Broken())
        with pytest.raises(ValueError, match="broken handler"):
            logger.info("sold")
    assert disk.messages == ["sold"]


def test_record_whose_arguments_do_not_fit_is_written_without_them(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise ValueError("unprintable")

    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.propagate = False
    with logging_to(disk):
        logger.info("%d sold", "tea")
        logger.info(Unprintable())
    assert disk.messages[0] == "%d sold"
    assert "Unprintable object" in disk.messages[1]


def test_record_that_is_made_while_another_one_is_formatted_is_written(disk: Disk) -> None:
    class Chatty:
        def __str__(self) -> str:
            logger.info("inner")
            return "outer"

    logger.propagate = False
    with logging_to(disk):
        logger.info("%s", Chatty())
    assert disk.messages[:2] == ["inner", "outer"]


def test_output_is_written_with_the_request_that_prints_it(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with logging_to(disk, output=True):
        token = REQUEST_ID.set("5f1c-2a")
        print("sold", "tea")
        REQUEST_ID.reset(token)
        sys.stderr.write("out of\nstock\nsoo")
        sys.stderr.writelines(["n\n", "later\n"])
        assert (sys.stdout.encoding.lower(), sys.stdout.isatty()) == ("utf-8", False)
        print("not ended", end="", flush=True)
    assert (sys.stdout, sys.stderr) == before
    keys = ("logger", "level", "message", "request_id")
    assert [tuple(record.get(key) for key in keys) for record in disk.records] == [
        ("stdout", "INFO", "sold tea", "5f1c-2a"),
        *(("stderr", "WARNING", message, None) for message in ("out of", "stock", "soon", "later")),
    ]
    assert capsys.readouterr() == ("sold tea\nnot ended", "out of\nstock\nsoon\nlater\n")


def test_lines_of_threads_that_print_at_the_same_time_are_not_mixed(disk: Disk) -> None:
    with logging_to(disk, output=True):
        print("a", end="")
        thread = threading.Thread(target=print, args=("b",))
        thread.start()
        thread.join()
        print("a")
    assert disk.messages == ["b", "aa"]


def test_record_that_a_handler_shows_on_standard_error_is_written_once(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to(disk, output=True):
        logger.propagate = False
        shown = logging.StreamHandler()
        logger.addHandler(shown)
        logger.info("at once")
        waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        logger.handlers = [logging.handlers.QueueHandler(waiting)]
        listener = logging.handlers.QueueListener(waiting, shown)
        listener.start()
        logger.info("on another thread")
        listener.stop()
    assert disk.messages == ["at once", "on another thread"]
    assert capsys.readouterr().err == "at once\non another thread\n"


def test_output_without_line_ends_is_bounded(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to(disk, output=True):
        for _ in range(100):
            sys.stdout.write("12345\r" * 1_000)
        print()
        print("x" * 1_000_000)
        print("after")
    assert len(capsys.readouterr().out) == 1_600_008
    progress, long, after = disk.text.splitlines()
    assert max(len(progress), len(long)) < MOST_BYTES
    assert "cut" in progress
    assert "cut" in long
    assert json.loads(after)["message"] == "after"


def test_full_disk_loses_records_says_so_once_and_counts_them(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    with logging_to(disk):
        disk.is_full = True
        for number in range(3):
            logger.info("lost %d", number)
        disk.is_full = False
        logger.info("kept")
        logger.info("kept, too")
    # The warning itself is lost as well.
    assert disk.messages == ["4 lines are lost, because they could not be written", "kept", "kept, too"]
    said = [each for each in caplog.messages if not each.startswith(("lost", "kept"))]
    assert said == ["log records are lost until they can be written again: [Errno 28] No space left on device"]


def test_process_that_was_forked_writes_nothing(disk: Disk) -> None:
    reading, writing = os.pipe()
    with logging_to(disk):
        child = os.fork()
        if not child:
            logger.info("in the child")
            os.write(writing, f"{len(disk.text)}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        logger.info("in the parent")
    assert os.read(reading, 10) == b"0"
    os.close(reading)
    os.close(writing)
    assert disk.messages == ["in the parent"]


def test_secrets_are_in_no_record_traceback_and_output(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", shown := io.StringIO())
    add_secrets(["hunter2-of-ada"])
    with logging_to(disk, output=True):
        print("printed: hunter2-of-ada")
        try:
            raise ValueError("raised: hunter2-of-ada")
        except ValueError:
            logger.exception("logged: %s", "hunter2-of-ada")
    assert disk.messages == ["printed: ***", "logged: ***"]
    assert disk.records[1]["exception"].endswith("ValueError: raised: ***")
    assert shown.getvalue() == "printed: ***\n"
