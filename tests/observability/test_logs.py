"""Log records have the request and the replica, and are shown unless the app configures logging itself."""

import asyncio
import json
import logging
import logging.config
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI
from fastapi.testclient import TestClient

from app_toolkit import Deployment, Toolkit, batch
from app_toolkit.observability import logs, tracebacks
from app_toolkit.observability.context import REPLICA, REQUEST_ID, TRACE, ReplicaContext
from app_toolkit.observability.log_formats import FIELDS
from app_toolkit.observability.logs import (
    UVICORN_LOGGERS,
    attach_fields,
    handle_uvicorn_loggers,
    propagate_uvicorn_loggers,
    show_logs,
)
from app_toolkit.types import ReplicaId
from tests.docs.pages import page

PAGE = page("docs/observability.md").part("Logs")
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
logger = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is no replica, also if an earlier test has started one in it."""
    monkeypatch.setattr(logs, "own_replica", None)


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


def write() -> None:
    """Log in the request of the page."""
    in_request().run(logging.getLogger("shop.chat").info, "%s tokens", 12)


def in_request() -> Context:
    context = Context()
    context.run(REQUEST_ID.set, "5f1c-2a")
    context.run(TRACE.set, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 a=1")
    context.run(REPLICA.set, ReplicaContext("shop", "chat", ReplicaId("shop@13.chat-1-1"), 13))
    return context


def test_a_record_has_its_time_and_the_id_of_its_request(capsys: pytest.CaptureFixture[str]) -> None:
    with as_it_begins():
        show_logs("info")
        write()
        logging.getLogger("shop").info("closed")
        logging.getLogger("shop").debug("unheard")
    shown, second = capsys.readouterr().err.splitlines(keepends=True)
    assert re.sub(TIME, "", shown) == re.sub(TIME, "", PAGE.shown("text")[1])
    assert second.endswith(" INFO shop: closed\n")
    assert re.match(TIME, shown)


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
    assert '    File "shop/prices.py", line 1, in <module>\n      1 / 0\n' in said
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


def test_records_in_json_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with as_it_begins():
        show_logs("info", "json")
        write()
        logger.warning("sold\n%s", "tea")
    shown, second = map(json.loads, capsys.readouterr().err.splitlines())
    (expected,) = map(json.loads, PAGE.shown("json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown["time"])
    assert {**shown, "time": expected["time"]} == expected
    assert list(shown) == list(expected)
    assert second["message"] == "sold\ntea"


def fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: vars(record)[name] for name in FIELDS if vars(record)[name] != ""}


def test_fields_are_those_of_the_context_of_the_log_call(caplog: pytest.LogCaptureFixture) -> None:
    attach_fields()
    in_request().run(logger.warning, "inside")
    Context().run(logger.warning, "outside")
    inside, outside = caplog.records
    assert fields(inside) == {
        "request_id": "5f1c-2a",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "application": "shop",
        "revision": 13,
        "deployment": "chat",
        "replica": "shop@13.chat-1-1",
    }
    assert fields(outside) == {}


def test_a_thread_without_a_context_has_the_replica_of_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attach_fields(ReplicaContext("shop", "chat", ReplicaId("shop.chat-1-1"), revision=12))
    thread = threading.Thread(target=Context().run, args=(logger.warning, "cleaned"))
    thread.start()
    thread.join()
    assert fields(caplog.records[0]) == {
        "application": "shop",
        "revision": 12,
        "deployment": "chat",
        "replica": "shop.chat-1-1",
    }


def test_what_an_app_gives_to_its_records_itself_overrides_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    class Own(logging.LogRecord):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            self.application = "till"

    class OwnLogger(logging.Logger):
        def makeRecord(self, *args: object, **kwargs: object) -> logging.LogRecord:
            record = super().makeRecord(*args, **kwargs)  # type: ignore[arg-type]
            record.deployment = "desk"
            return record

    attach_fields()
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Own)
    try:
        logger.warning("sold", extra={"request_id": "mine"})
        own = OwnLogger("own")
        own.addHandler(caplog.handler)
        own.warning("sold")
    finally:
        logging.setLogRecordFactory(before)
    first, second = caplog.records
    assert fields(first) == {"request_id": "mine", "application": "till"}
    assert fields(second) == {"application": "till", "deployment": "desk"}


def test_a_formatter_of_the_app_uses_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = PAGE.shown("py")
    with as_it_begins():
        show_logs("info")
        in_request().run(exec, code, {})
    assert capsys.readouterr().err == PAGE.shown("text")[2]


async def log(message: str) -> None:
    logger.warning(message)


class Writer(Deployment):
    @batch(max_batch_size=2, batch_wait_timeout_s=0)
    async def write(self, prompts: list[str]) -> list[str]:
        logger.warning("in a batch")
        return prompts

    def draw(self) -> None:
        logger.warning("on a thread of a class")


def shop() -> Toolkit:
    writer = Writer.bind()
    app = Toolkit(deployments=[writer])

    @app.get("/sell")
    async def sell(tasks: BackgroundTasks) -> None:
        tasks.add_task(logger.warning, "in a background task, on a thread")
        await asyncio.to_thread(logger.warning, "on a thread")
        await asyncio.create_task(log("in a task"))
        await writer.handle.write("tea")
        await asyncio.to_thread(writer.handle.draw)

    return app


def test_records_of_threads_batches_and_background_tasks_have_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    with TestClient(shop()) as client:
        assert client.get("/sell", headers={"x-request-id": "5f1c-2a", **trace}).status_code == 200
    found = {record.getMessage(): fields(record) for record in caplog.records if record.name == "shop"}
    request = {"request_id": "5f1c-2a", "trace_id": trace["traceparent"][3:35], "application": "default"}
    ingress = {**request, "deployment": "app", "replica": "app"}
    batched = {"application": "default", "deployment": "writer", "replica": "writer"}
    assert found == {
        "in a task": ingress,
        "on a thread": ingress,
        "in a background task, on a thread": ingress,
        "on a thread of a class": {**request, **batched},
        "in a batch": {**batched, "request_ids": "5f1c-2a"},
    }


def test_a_failed_request_is_logged_with_its_id(caplog: pytest.LogCaptureFixture) -> None:
    plain = FastAPI()
    app = Toolkit()
    app.mount("/plain", plain)

    @plain.get("/fail")
    def fail() -> None:
        raise ValueError("sold out")

    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.get("/plain/fail", headers={"x-request-id": "5f1c-2a"}).status_code == 500
    (record,) = [each for each in caplog.records if "failed in" in each.getMessage()]
    assert fields(record) == {
        "request_id": "5f1c-2a",
        "application": "default",
        "deployment": "app",
        "replica": "app",
    }


@contextmanager
def as_uvicorns_loggers_begin() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in UVICORN_LOGGERS]
    before = [(each, each.handlers, each.propagate, each.level) for each in loggers]
    try:
        yield
    finally:
        for uvicorns, handlers, propagate, level in before:
            uvicorns.handlers, uvicorns.propagate = handlers, propagate
            uvicorns.setLevel(level)


LEVEL: dict[str, Any] = {"level": "INFO"}
TO_ROOT: dict[str, Any] = {"level": "INFO", "handlers": ["own"]}


@pytest.mark.parametrize("root", [TO_ROOT, LEVEL], ids=["root has handlers", "root has none"])
@pytest.mark.parametrize(
    "loggers",
    [
        {},
        {"uvicorn": LEVEL},
        {"uvicorn.access": LEVEL},
        {"uvicorn": LEVEL, "uvicorn.access": LEVEL},
        {"uvicorn": {**LEVEL, "propagate": True}, "uvicorn.access": LEVEL},
        {"uvicorn": {**TO_ROOT, "propagate": False}, "uvicorn.access": LEVEL},
        {"uvicorn.access": {**LEVEL, "propagate": False}},
    ],
    ids=["none", "uvicorn", "access", "both", "as by default", "uvicorn handles", "access does not propagate"],
)
def test_records_of_uvicorns_loggers_are_shown_once_and_each_logger_has_a_handler(
    capsys: pytest.CaptureFixture[str], root: dict[str, Any], loggers: dict[str, Any]
) -> None:
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"own": {"format": "own: %(message)s"}},
        "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
        "root": root,
        "loggers": loggers,
    }
    with as_it_begins(), as_uvicorns_loggers_begin():
        show_logs("info")
        handle_uvicorn_loggers("info")
        logging.config.dictConfig(config)
        propagate_uvicorn_loggers(loggers)
        for name in UVICORN_LOGGERS:
            assert logging.getLogger(name).handlers
            logging.getLogger(name).info("from %s", name)
    lines = capsys.readouterr().err.splitlines()
    assert [line[line.index("from ") :] for line in lines] == ["from uvicorn", "from uvicorn.access"]
    to_root = root is TO_ROOT and not any(each.get("propagate") is False for each in loggers.values())
    assert all(line.startswith("own: ") for line in lines) or not to_root
