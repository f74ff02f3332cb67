"""Which log records a query finds, and how those of several nodes become one page."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.observability.log_query import LoggedRecord, LogQuery, NodeLogs, kind_of, newest, page, time_of


def line(second: int = 0, message: str = "sold", **fields: object) -> str:
    begin = {"time": f"2026-05-04T09:30:{second:02d}.000Z", "level": "INFO", "logger": "shop", "message": message}
    return json.dumps({**begin, **fields}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("query", "read"),
    [
        (
            LogQuery(),
            ["shop.chat-1-1", "shop@13.chat-1-2", "bank.chat-1-1", "template-1", "proxy@n-1-1", "controller-7"],
        ),
        (LogQuery(application="shop"), ["shop.chat-1-1", "shop@13.chat-1-2"]),
        (LogQuery(application="shop", revision=13), ["shop.chat-1-1", "shop@13.chat-1-2"]),
        (LogQuery(revision=13), ["shop.chat-1-1", "shop@13.chat-1-2", "bank.chat-1-1"]),
        (LogQuery(application="bank", deployment="chat"), ["bank.chat-1-1"]),
        (LogQuery(application="bank", deployment="cha"), []),
        (LogQuery(kind="proxies"), ["proxy@n-1-1"]),
        (LogQuery(kind="controller"), ["controller-7"]),
        (LogQuery(kind="replicas"), ["shop.chat-1-1", "shop@13.chat-1-2", "bank.chat-1-1", "template-1"]),
        (LogQuery(replica="shop.chat-1-1"), ["shop.chat-1-1"]),
    ],
    ids=str,
)
def test_query_reads_only_the_files_that_may_have_its_records(query: LogQuery, read: list[str]) -> None:
    files = ["shop.chat-1-1", "shop@13.chat-1-2", "bank.chat-1-1", "template-1", "proxy@n-1-1", "controller-7"]
    assert [each for each in files if query.reads(each)] == read


def test_names_of_proxies_are_no_names_of_replicas() -> None:
    assert [kind_of(each) for each in ("shop.proxy-1-1", "proxy@n-1-1", "template-1")] == [
        "replicas",
        "proxies",
        "replicas",
    ]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (LogQuery(), True),
        (LogQuery(request_id="5f1c"), True),
        (LogQuery(request_id="5f1"), False),
        (LogQuery(request_id="b-2"), True),
        (LogQuery(request_id="sold"), False),
        (LogQuery(level="info"), True),
        (LogQuery(level="warning"), False),
        (LogQuery(replica="shop.chat-1-1"), True),
        (LogQuery(replica="shop.chat-1-10"), False),
        (LogQuery(request_id="5f1c", level="error"), False),
        (LogQuery(revision=13), True),
        (LogQuery(revision=1), False),
    ],
    ids=str,
)
def test_query_matches_a_record_by_its_request_its_batch_its_level_its_replica_and_its_revision(
    query: LogQuery, found: bool
) -> None:
    record = line(request_id="5f1c", request_ids=["b-1", "b-2"], replica="shop.chat-1-1", revision=13)
    assert query.matches(record.encode()) is found


def test_message_that_looks_like_a_field_is_not_taken_for_one() -> None:
    assert not LogQuery(request_id="5f1c").matches(line(message='","request_id":"5f1c"').encode())


def test_line_that_is_not_complete_is_no_record() -> None:
    for broken in (line()[:-5], line()[20:], "", "[]", "7", '{"time":"now"}', '{"request_ids":7}'):
        assert LoggedRecord.parse(broken) is None
    assert not LogQuery(level="debug").matches(line()[:-5].encode())


def test_record_becomes_the_line_that_it_was_read_from() -> None:
    written = line(request_id="5f1c", revision=13, exception="Traceback")
    record = LoggedRecord.parse(written)
    assert record is not None
    assert record.line == written
    assert LoggedRecord.parse(line(unknown="field")) == LoggedRecord.parse(line())


@given(st.lists(st.integers(0, 59)), st.integers(1, 20), st.integers(1, 5_000))
def test_newest_lines_are_in_order_and_within_both_limits(seconds: list[int], last: int, most: int) -> None:
    lines = [line(second, f"{number}") for number, second in enumerate(seconds)]
    kept = newest(lines, last, most)
    expected = sorted(lines, key=time_of)
    assert kept == expected[len(expected) - len(kept) :]
    assert len(kept) <= last
    assert len(kept) == bool(lines) or sum(len(each) + 1 for each in kept) <= most
    if len(kept) < min(last, len(lines)):
        assert sum(len(each) + 1 for each in expected[-len(kept) - 1 :]) > most, "no more is left out than must be"


def test_page_has_the_records_of_all_nodes_in_the_order_of_time() -> None:
    nodes = {"a": NodeLogs((line(1), line(3)), {"x": "1:9"}), "b": NodeLogs((line(2),), {"y": "2:5"}, more=True)}
    found = page(nodes, 2, ["c"], {"c": {"z": "3:4"}})
    assert [record.time[17:19] for record in found.records] == ["02", "03"]
    assert found.positions == {"a": {"x": "1:9"}, "b": {"y": "2:5"}, "c": {"z": "3:4"}}
    assert (found.more, found.missing) == (True, ("c",))
    assert len(page(nodes, None, [], {}).records) == 3
