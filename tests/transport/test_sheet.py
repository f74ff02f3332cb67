"""Memory that two processes share for long answers."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.transport.sheet import LIVE, WORD, Following, Sheet, Sheets
from app_toolkit.types import Address

HERE, THERE = Address("unix:/here"), Address("unix:/there")


@pytest.fixture
def sheet() -> Iterator[Sheet]:
    sheet = Sheet(100)
    yield sheet
    sheet.close()
    assert not Sheet.live


def word(size: int) -> bytes:
    return size.to_bytes(WORD, "big")


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=8), st.data())
def test_an_answer_is_read_as_it_was_written_however_its_words_arrive(pieces: list[bytes], data: st.DataObject) -> None:
    body = b"".join(pieces)
    sheet, sheets = Sheet(len(body) + data.draw(st.integers(0, 5))), Sheets()
    try:
        following = Following(sheets.open(HERE, sheet.name), len(body))
        words, at = b"", 0
        for piece in pieces:
            words += sheet.write(memoryview(piece), at)
            at += len(piece)
        read = b""
        while words:
            assert not following.complete
            arrived = data.draw(st.integers(1, len(words)))
            read += following.feed(words[:arrived])
            words = words[arrived:]
        assert following.complete
        assert read == body
    finally:
        sheet.close()


@pytest.mark.parametrize("words", [word(11), word(10) + b"\0", word(10) + word(0), word(4) + word(7)])
def test_more_words_than_the_answer_are_refused(sheet: Sheet, words: bytes) -> None:
    following = Following(Sheets().open(HERE, sheet.name), 10)
    with pytest.raises(ValueError, match="more came"):
        following.feed(words)


def test_an_answer_that_is_longer_than_its_sheet_is_refused(sheet: Sheet) -> None:
    with pytest.raises(ValueError, match="101 bytes does not lie on a sheet of 100"):
        Following(Sheets().open(HERE, sheet.name), 101)


def test_what_was_read_stays_when_its_writer_has_gone(sheet: Sheet) -> None:
    view = Sheets().open(HERE, sheet.name)
    sheet.write(memoryview(b"whole"), 0)
    sheet.close()
    assert bytes(view[:5]) == b"whole"


def test_nobody_can_write_where_he_reads(sheet: Sheet) -> None:
    assert Sheets().open(HERE, sheet.name).readonly


def test_a_replica_whose_sheet_was_not_to_be_had_is_asked_for_none_any_more(sheet: Sheet, tmp_path: Path) -> None:
    process, number, token, size = sheet.name.split(b"/")
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)  # who waits for its writer waits for ever
    with open(fifo, "rb"), open(os.devnull, "rb") as other:
        names = [
            b"/".join((process, b"%d" % fifo, token, size)),
            b"/".join((process, b"%d" % other.fileno(), token, size)),
            b"/".join((process, number, b"0123456789abcdef", size)),
            b"/".join((process, number, token, b"1000000000")),
            b"/".join((process, number, token, b"1" + 30 * b"0")),
            b"/".join((b"..", number, token, size)),
            b"/".join((b"0", number, token, size)),
            b"1/2/3",
            b"\xff",
        ]
        for name in names:
            sheets = Sheets()
            assert sheets.asks(HERE, again=True)
            with pytest.raises(OSError):  # noqa: PT011 - in the system's words, or ours
                sheets.open(HERE, name)
            assert not sheets.asks(HERE, again=True)
            assert sheets.asks(THERE, again=True)


def test_what_may_not_run_twice_asks_only_whose_sheets_have_been_read(sheet: Sheet) -> None:
    sheets = Sheets()
    assert not sheets.asks(HERE, again=False)
    sheets.open(HERE, sheet.name)
    assert sheets.asks(HERE, again=False)
    sheets.forget(HERE)
    assert not sheets.asks(HERE, again=False)


def test_a_child_that_user_code_forks_does_not_keep_the_memory(sheet: Sheet) -> None:
    def kept() -> bool:
        return "/memfd:" in os.readlink(f"/proc/self/fd/{sheet.fileno()}")

    assert kept()
    told = multiprocessing.get_context("fork").SimpleQueue()
    child = multiprocessing.get_context("fork").Process(target=lambda: told.put(kept()))
    child.start()
    assert told.get() is False
    child.join()


def test_there_are_only_so_many_and_one_that_is_closed_makes_room() -> None:
    sheets = [Sheet(10) for _ in range(LIVE)]
    try:
        with pytest.raises(OSError, match=f"{LIVE} sheets are in use"):
            Sheet(10)
        sheets.pop().close()
        sheets.append(Sheet(10))
    finally:
        for sheet in sheets:
            sheet.close()
            sheet.close()
    assert not Sheet.live
