import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.errors import InsecurePath
from app_toolkit.observability.access import BATCH, AccessLog
from app_toolkit.observability.log_file import LogFile
from app_toolkit.observability.records import Record

PEERS = b"192.0.2.7 50123 127.0.0.1 8000 http"


def entry(arrived=100.0, path=b"/items/7", peers=PEERS):
    return Record(
        arrived, 0.0042, "http", "shop/catalog", "replica-1", 1, "ok", b"GET", b"id-1", peers, path, status=200, size=12
    )


def lines(*entries):
    """What the log writes of these entries, where it is 1970-01-01T01:00:00Z and the records' clock shows 100."""
    written = []
    log = AccessLog(written.append, lambda: (3_600.0, 100.0))
    for each in entries:
        log.add(each)
    log.flush()
    return [json.loads(line) for text in written for line in text.splitlines()]


def test_log_line_has_the_client_the_request_and_the_outcome():
    assert lines(entry(arrived=99.5)) == [
        {
            "time": "1970-01-01T00:59:59.500Z",
            "client": "192.0.2.7",
            "port": 50123,
            "method": "GET",
            "path": "/items/7",
            "status": 200,
            "outcome": "ok",
            "bytes": 12,
            "ms": 4.2,
            "request_id": "id-1",
            "ingress": "shop/catalog",
            "replica": "replica-1",
            "tries": 1,
        }
    ]


@given(st.binary(max_size=200))
def test_log_line_is_json_without_the_query_for_any_path(data):
    written = []
    log = AccessLog(written.append, lambda: (0.0, 0.0))
    log.add(entry(path=b"/" + data))
    log.flush()
    (text,) = written
    assert text.isascii()
    assert text.count("\n") == 1
    assert all(character.isprintable() for character in text[:-1])
    assert json.loads(text)["path"] == "/" + data.decode("latin-1").partition("?")[0].partition("#")[0]


@pytest.mark.parametrize("target", [b"http://user:password@host/x", b"nonsense", b""])
def test_of_a_target_that_was_refused_nothing_secret_is_kept(target):
    assert lines(entry(path=target))[0]["path"] == "-"


def test_a_copy_of_a_request_is_marked():
    request, copy = lines(entry(), entry()._replace(kind="mirrored"))
    assert copy == {**request, "mirrored": True}


def test_a_refused_connection_has_no_line():
    assert lines(entry()._replace(kind="connection", outcome="too_many_connections")) == []


def test_an_address_of_ipv6_is_a_client_too():
    (line,) = lines(entry(peers=b'fe80::1%"eth0 443 ::1 80 https'))
    assert (line["client"], line["port"]) == ('fe80::1%"eth0', 443)


def test_lines_are_written_many_at_a_time_and_never_more_than_a_batch_waits():
    written = []
    log = AccessLog(written.append, lambda: (0.0, 0.0))
    for _ in range(BATCH + 3):
        log.add(entry())
    assert [text.count("\n") for text in written] == [BATCH]
    log.flush()
    log.flush()
    assert [text.count("\n") for text in written] == [BATCH, 3]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), InsecurePath("access.log is a symbolic link")]
)
def test_lost_lines_are_one_warning_and_a_count_in_the_next_line(error, caplog):
    written, full = [], True

    def write(text):
        if full:
            raise error
        written.append(text)

    log = AccessLog(write, lambda: (0.0, 0.0))
    for _ in range(3):
        log.add(entry())
        log.flush()
    assert caplog.messages == [f"lines of the access log are lost until it can be written again: {error}"]
    full = False
    log.add(entry())
    log.flush()
    log.add(entry())
    log.flush()
    first, *rest = [json.loads(line) for text in written for line in text.splitlines()]
    assert first["dropped"] == 3
    assert [line["status"] for line in rest] == [200, 200]


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path):
    path = tmp_path / "access.log"
    path.touch()
    path.chmod(0o664)
    LogFile(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_full_is_begun_anew_and_the_one_before_it_is_kept(tmp_path):
    path = tmp_path / "access.log"
    file = LogFile(path, most=10)
    for text in ("12345\n", "678\n", "9\n", "0\n"):
        file.write(text)
    file.close()
    assert path.read_text() == "9\n0\n"
    assert (tmp_path / "access.log.1").read_text() == "12345\n678\n"


def test_a_file_is_gone_on_with_and_its_loss_is_no_end(tmp_path):
    path = tmp_path / "access.log"
    path.write_text("before\n")
    file = LogFile(path, most=12)
    file.write("abc\n")
    path.unlink()
    file.write("defgh\n")
    file.close()
    assert path.read_text() == "defgh\n"
