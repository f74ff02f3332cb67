"""What a client writes into its path, user agent and request id is one record in each log, on one line."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app_toolkit.observability.log_formats import MOST_BYTES, JsonFormatter, TextFormatter, shown
from app_toolkit.observability.log_query import LoggedRecord
from app_toolkit.observability.logs import attach_fields
from app_toolkit.observability.process_log import ProcessLog
from app_toolkit.observability.records import LONGEST_PATH
from tests.edge.world import World

logger = logging.getLogger("shop")
MEGABYTE = b"x" * 1_000_000
CONTROLS = [b"\r", b"\n", b"\r\n", b"\x1b[2K", b"\x00", b"\x7f"]


async def log_request(scope: Any, receive: Any, send: Any) -> None:
    """An app that logs what its client has sent."""
    fields = dict(scope["headers"])
    logger.info("%s by %s", scope["path"], fields[b"user-agent"].decode("latin-1"))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


@pytest.fixture(params=[JsonFormatter, TextFormatter])
def written(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    lines: list[str] = []
    attach_fields()
    log = ProcessLog(lines.append, formatter=request.param())
    log.begin()
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(logging.NOTSET)
    log.close()


def one_line(text: str) -> str:
    """Return the only line of a text, whose characters can all be printed."""
    line = text.removesuffix("\n")
    assert line.isprintable()
    return line


def forged(control: bytes) -> bytes:
    return b"tea" + control + b'{"time":"2026-05-04T09:30:00.123Z","message":"paid"}'


@pytest.mark.parametrize("times", [1, 500], ids=["short", "long"])
def test_a_request_that_is_served_is_one_record_in_each_log(own: World, written: list[str], times: int) -> None:
    own.one(app=log_request)
    path = b"/" + b"".join(b"%%%02x" % each for each in forged(b"\r\n\x1b[2K\x00\x7f\xc2\x9b\xe2\x80\xa8")) * times
    agent = forged(b"\t\x85\x9b2K\xff") * times
    head = b"GET %b HTTP/1.1\r\nhost: a\r\nuser-agent: %b\r\nx-request-id: %b\r\n\r\n"
    with own.raw() as raw:
        got = raw.send(head % (path[:9_001], agent[:40_000], b"tea\t" + forged(b" "))).answer()
    assert got.status == 200
    assert own.edge.records() == [own.record(got.header("x-request-id"))]

    (text,) = [each for each in written if " by " in each]
    line = one_line(text)
    assert len(line.encode()) < MOST_BYTES
    assert ("bytes cut" in line) == (times > 1)
    if line.startswith("{"):
        record = LoggedRecord.parse(line)
        assert record is not None
        assert record.request_id == got.header("x-request-id")
        one_line(shown(record))
        one_line(record.line)


@pytest.mark.parametrize("control", [*CONTROLS, MEGABYTE], ids=lambda each: repr(each[:4]))
@pytest.mark.parametrize(
    "head",
    [
        lambda text: b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n" % text,
        lambda text: b"GET / HTTP/1.1\r\nhost: a\r\nuser-agent: %b\r\n\r\n" % text,
        lambda text: b"GET / HTTP/1.1\r\nhost: a\r\nx-request-id: %b\r\n\r\n" % text,
    ],
    ids=["path", "user agent", "request id"],
)
def test_a_request_that_is_refused_is_one_access_record(
    own: World, head: Callable[[bytes], bytes], control: bytes
) -> None:
    own.one(app=log_request)
    with own.raw() as raw:
        assert raw.send(head(forged(control))).answer().status in (400, 414, 431)
    (record,) = own.edge.records()
    assert len(record["path"]) <= LONGEST_PATH
    assert "paid" not in record["request_id"]
