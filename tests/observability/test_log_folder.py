"""The log files of one node are bounded, and readers find each line once."""

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.errors import InsecurePath
from app_toolkit.observability import log_folder
from app_toolkit.observability.log_folder import LogFolder
from app_toolkit.observability.log_query import LogQuery, NodeLogs

ALL = LogQuery()


def line(number: int, **fields: object) -> str:
    time = f"2026-05-04T09:{number // 60:02d}:{number % 60:02d}.000Z"
    return json.dumps({"time": time, "level": "INFO", "logger": "shop", "message": f"{number}", **fields}).replace(
        " ", ""
    )


def numbers(found: NodeLogs) -> list[int]:
    return [int(json.loads(each)["message"]) for each in found.lines]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LogFolder]:
    opened = LogFolder(tmp_path / "logs")
    yield opened
    opened.close()


def write(folder: LogFolder, name: str, *lines: str) -> None:
    file = folder.create(name)
    for each in lines:
        file.write(f"{each}\n")
    file.close()


def test_files_are_accessible_only_to_their_user(folder: LogFolder, tmp_path: Path) -> None:
    write(folder, "a/../b", line(1))
    (file,) = (tmp_path / "logs").iterdir()
    assert file.name == "a_.._b.log"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


def test_folder_of_others_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(InsecurePath, match="mode 0755, and must belong to user"):
        LogFolder(tmp_path / "open")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(InsecurePath, match="is not a folder"):
        LogFolder(tmp_path / "link")
    kept = LogFolder(tmp_path / "kept")
    (tmp_path / "target").touch()
    (tmp_path / "kept" / "a.log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        kept.create("a")
    assert kept.read(ALL).lines == ()
    kept.close()


def test_newest_lines_of_all_processes_are_found_in_the_order_of_time(folder: LogFolder) -> None:
    write(folder, "shop.chat-1-1", *map(line, range(0, 20, 2)))
    write(folder, "shop.chat-1-2", *map(line, range(1, 20, 2)))
    found = folder.read(ALL, 5)
    assert numbers(found) == [15, 16, 17, 18, 19]
    assert found.more
    assert not folder.read(ALL, 20).more


def test_only_lines_of_the_request_are_found_in_all_files(folder: LogFolder) -> None:
    write(folder, "shop.chat-1-1", *map(line, range(50)), line(50, request_id="a"), line(51, request_id="b"))
    write(folder, "shop.text-1-1", line(60, request_ids=["b", "a"]), line(61, message="a"))
    assert numbers(folder.read(LogQuery(request_id="a"))) == [50, 60]


def test_previous_file_is_searched_too(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_folder, "MOST_BYTES", 400)
    write(folder, "shop.chat-1-1", *map(line, range(8)))
    assert numbers(folder.read(ALL)) == list(range(8 - len(folder.read(ALL).lines), 8))
    assert len(folder.read(ALL).lines) > 4


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)) | st.none(), max_size=30))
def test_follower_finds_each_line_once_also_if_files_are_renamed(steps: list[tuple[int, int] | None]) -> None:
    """None: the follower reads. Otherwise, a process writes so many lines."""
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as base:
        patched.setattr(log_folder, "MOST_BYTES", 1_000)  # more than is written between two reads
        folder, written, found = LogFolder(Path(base, "logs")), 0, []
        page = folder.read(ALL)
        files = [folder.create(f"shop.chat-1-{number}") for number in range(3)]
        for step in [*steps, None]:
            if step is None:
                page = folder.read(ALL, after=page.positions)
                found += numbers(page)
                assert not page.more
                continue
            if written - len(found) + step[1] > 8:
                continue
            for _ in range(step[1]):
                files[step[0]].write(f"{line(written)}\n")
                written += 1
        assert sorted(found) == list(range(written))
        for file in files:
            file.close()
        folder.close()


def test_page_is_bounded_and_the_next_one_goes_on(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "shop.chat-1-1", *map(line, range(10)))
    write(folder, "shop.text-1-1", *map(line, range(10, 20)))
    monkeypatch.setattr(log_folder, "MOST_PAGE_BYTES", 500)
    found: list[int] = []
    page, pages = NodeLogs(more=True), 0
    while page.more:
        page = folder.read(ALL, after=page.positions)
        assert sum(map(len, page.lines)) <= 500 + len(line(0))
        found += numbers(page)
        pages += 1
    assert found == list(range(20))
    assert pages > 2
    newest = folder.read(ALL)
    assert numbers(newest) == list(range(20 - len(newest.lines), 20))
    assert (sum(map(len, newest.lines)) <= 500, newest.more) == (True, True)


def test_line_that_is_being_written_is_left_for_the_next_page(folder: LogFolder, tmp_path: Path) -> None:
    write(folder, "shop.chat-1-1", line(0))
    file = tmp_path / "logs" / "shop.chat-1-1.log"
    file.write_text(file.read_text() + line(1)[:30])
    page = folder.read(ALL)
    assert numbers(page) == [0]
    file_descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    os.write(file_descriptor, f"{line(1)[30:]}\n".encode())
    os.close(file_descriptor)
    assert numbers(folder.read(ALL, after=page.positions)) == [1]


def test_search_that_is_late_ends_and_says_so(folder: LogFolder) -> None:
    write(folder, "shop.chat-1-1", *map(line, range(5)))
    clock = iter(range(0, 1_000, 11))
    page = folder.read(ALL, now=lambda: next(clock))
    assert (page.lines, page.more) == ((), True)
    page = folder.read(ALL, after={}, now=lambda: next(clock))
    assert (page.lines, page.more) == ((), True)
    assert numbers(folder.read(ALL, after=page.positions)) == list(range(5))


def test_oldest_files_of_ended_processes_are_removed(
    folder: LogFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = folder.create("shop.chat-1-0")
    running.write(f"{line(0)}\n")
    os.utime(tmp_path / "logs" / "shop.chat-1-0.log", (0, 0))
    for number in range(1, 5):
        write(folder, f"shop.chat-1-{number}", line(number))
        os.utime(tmp_path / "logs" / f"shop.chat-1-{number}.log", (number, number))
    monkeypatch.setattr(log_folder, "KEPT_FILES", 2)
    folder.create("shop.chat-1-5").close()
    assert numbers(folder.read(ALL)) == [0, 3, 4]
    monkeypatch.setattr(log_folder, "KEPT_BYTES", 0)
    folder.create("shop.chat-1-6").close()
    assert numbers(folder.read(ALL)) == [0]
    running.close()
