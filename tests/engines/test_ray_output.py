"""The output of workers appears once, line by line, with the name of its actor."""

import errno
import io
import os
import threading
from pathlib import Path

import pytest

from app_toolkit.engines.ray.output import LOG_FOLDER, MOST_BYTES, POLL_S, Output
from app_toolkit.observability.log_folder import LogFolder
from app_toolkit.observability.log_formats import shown
from app_toolkit.observability.log_query import LoggedRecord
from tests.patience import PATIENCE_S, wait_until


def test_lines_appear_with_the_name_of_their_actor_and_without_rays_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "worker-1-01-10.out").write_text(":job_id:01\nearly\n:actor_name:shop.chat-1-1\nhello\n")
    (tmp_path / "worker-1-01-10.err").write_text(":job_id:01\n:actor_name:shop.chat-1-1\nTraceback\n")
    (tmp_path / "raylet.out").write_text("not for users\n")
    Output(tmp_path).close()
    said = capsys.readouterr()
    assert said.out == "worker | early\nshop.chat-1-1 | hello\n"
    assert said.err == "shop.chat-1-1 | Traceback\n"


def test_a_line_is_shown_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", shown := io.StringIO())  # `readouterr` loses what a thread writes meanwhile
    output = Output(tmp_path)
    with (tmp_path / "worker-2-01-11.out").open("w", buffering=1) as file:
        file.write(":actor_name:proxy\none\ntw")
        file.flush()
        wait_until(lambda: shown.getvalue() == "proxy | one\n")
        file.write("o\nthree")
        file.flush()
        wait_until(lambda: shown.getvalue() == "proxy | one\nproxy | two\n")
    output.close()
    assert shown.getvalue() == "proxy | one\nproxy | two\nproxy | three\n"


def test_a_very_long_line_is_split_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "worker-3-01-12.out").write_text("x" * (3 * MOST_BYTES))
    Output(tmp_path).close()
    assert capsys.readouterr().out.count("x") == 3 * MOST_BYTES


def test_a_file_that_is_begun_anew_is_read_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", shown := io.StringIO())
    file = tmp_path / "worker-4-01-13.out"
    file.write_text("a longer first line\n")
    output = Output(tmp_path)
    wait_until(lambda: shown.getvalue() == "worker | a longer first line\n")
    file.write_text("second\n")
    output.close()
    assert shown.getvalue() == "worker | a longer first line\nworker | second\n"


def test_output_without_a_reader_does_not_end_the_other_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    (tmp_path / "worker-5-01-14.out").write_text("unheard\n")
    with open(writing, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        output = Output(tmp_path)
        wait_until(lambda: os.fstat(writing).st_rdev == os.stat(os.devnull).st_rdev)
        (tmp_path / "worker-5-01-14.err").write_text("heard\n")
        (tmp_path / "worker-6-01-15.out").write_text("unheard\n")
        output.close()
    assert capsys.readouterr().err == "worker | heard\n"


def test_characters_that_the_terminal_cannot_show_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    (tmp_path / "worker-7-01-16.out").write_text("price: 3 \N{EURO SIGN}\nlater\n")
    Output(tmp_path).close()
    assert written.getvalue() == b"worker | price: 3 ?\nworker | later\n"


def outputs() -> set[threading.Thread]:
    """The threads that show output; the cluster that the tests share has one, too."""
    return {thread for thread in threading.enumerate() if thread.name == "app-toolkit output"}


def test_a_removed_file_does_not_end_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "worker-8-01-17.out").symlink_to("renamed")  # it is listed, and there is no such file
    others = outputs()
    output = Output(tmp_path)
    (thread,) = outputs() - others
    thread.join(3 * POLL_S)  # some looks at the files
    assert thread.is_alive()
    (tmp_path / "worker-9-01-18.out").write_text("another one\n")
    output.close()
    assert capsys.readouterr().out == "worker | another one\n"


def test_lines_are_shown_again_once_a_full_disk_has_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        encoding = "utf-8"
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                tried.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    tried = threading.Event()
    monkeypatch.setattr("sys.stdout", stream := Full())
    (tmp_path / "worker-1-01-19.out").write_text("lost\n")
    output = Output(tmp_path)
    assert tried.wait(PATIENCE_S)
    stream.is_full = False
    with (tmp_path / "worker-1-01-19.out").open("a") as file:
        file.write("shown\n")
    output.close()
    assert stream.getvalue() == "worker | shown\n"


def test_control_characters_are_escaped_except_for_tabs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = (
        "a\tb",
        "\x1b[2J\x1b]0;title\x07\0",
        "\x1b[31mred\u202e",
        '{"time":"\x1b[2J\u2028",\t"level":1}\r',
        ":actor_name:\x1b[2Jshop",
        "end\r",
        "",
    )
    (tmp_path / "worker-1-01-20.out").write_bytes("".join(f"{each}\n" for each in printed).encode())
    Output(tmp_path).close()
    assert capsys.readouterr().out.split("\n") == [
        "worker | a\tb",
        r"worker | \x1b[2J\x1b]0;title\x07\x00",
        r"worker | \x1b[31mred\u202e",
        '{"time":"\\u001b[2J\\u2028",\t"level":1}',
        r"\x1b[2Jshop | end",
        r"\x1b[2Jshop | ",
        "",
    ]


def test_a_terminal_gets_colours_which_end_with_their_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    (tmp_path / "worker-1-01-21.out").write_text("\x1b[1;31mred\x1b[38:5:1m\ttoo\x1b[2A\nplain\\x1b[31m\n")
    Output(tmp_path).close()
    assert terminal.getvalue().splitlines() == [
        "\x1b[36mworker |\x1b[0m \x1b[1;31mred\x1b[38:5:1m\ttoo\\x1b[2A\x1b[0m",
        "\x1b[36mworker |\x1b[0m plain\\x1b[31m",
    ]


def test_each_state_of_a_progress_bar_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "worker-1-01-22.err").write_bytes(b"\rweights: 0 %\rweights: 100 %\n")
    Output(tmp_path).close()
    assert capsys.readouterr().err == "worker | weights: 0 %\nworker | weights: 100 %\n"


def test_a_line_of_the_access_log_is_shown_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "worker-6-01-15.out").write_text(':actor_name:proxy\n{"time":"2026-05-04T09:30:00.123Z"}\n')
    Output(tmp_path).close()
    assert capsys.readouterr().out == '{"time":"2026-05-04T09:30:00.123Z"}\n'


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_records_of_all_processes_and_the_access_log_are_written_to_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    access = '{"time":"2026-05-04T09:30:00.123Z","client":"192.0.2.7"}'
    (tmp_path / "worker-7-01-16.out").write_text(f":actor_name:proxy\n{access}\n")
    (tmp_path / "worker-7-01-17.out").write_text(f":actor_name:shop.chat-1-1\nhello\n{access}\n")
    (tmp_path / "worker-7-01-17.err").write_text(":actor_name:shop.chat-1-1\nTraceback\n")
    records = [
        LoggedRecord(f"2026-05-04T09:30:00.12{number}Z", "INFO", "shop", "tea\n\x1b[2K", "5f1c", replica=name)
        for number, name in enumerate(["shop.chat-1-1", "controller", "shop.chat-1-1", "shop.chat-1-1"])
    ]
    monkeypatch.setattr("sys.stdout", said := io.StringIO())
    monkeypatch.setattr("sys.stderr", io.StringIO())
    output = Output(tmp_path, log_format)
    folder = LogFolder(tmp_path / LOG_FOLDER)
    for position, record in enumerate(records):
        file = folder.create(record.replica)
        file.write(f"{record.line}\n")
        file.close()
        if position < 2:  # what is in the file when the output ends is written, too
            wait_until(lambda count=position + 2: said.getvalue().count("\n") == count)
    folder.close()
    output.close()
    expected = [record.line if log_format == "json" else shown(record) for record in records]
    lines = said.getvalue().splitlines()
    lines.remove(access)  # it is from another file, so its place is not determined
    assert lines == expected
