"""Folders and files that are ours alone, and what another user can try against them."""

import os
import re
import stat
from pathlib import Path

import pytest

from app_toolkit import private
from app_toolkit.errors import InsecurePath
from tests.security.other_user import NOBODY, needs_root

ME = os.geteuid()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_folder_is_made_for_this_user_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = private.folder(tmp_path / "made")
    finally:
        os.umask(before)
    assert made == tmp_path / "made"
    assert mode(made) == 0o700
    (made / "kept").touch()
    assert private.folder(made) == made
    assert (made / "kept").exists()


def test_its_real_path_is_given(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert private.folder(tmp_path / "link" / "made") == tmp_path / "real" / "made"


def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(InsecurePath, match="has more than 40 symbolic links on its way"):
        private.folder(tmp_path / "one" / "made")


@pytest.mark.parametrize("others", [0o755, 0o750, 0o701])
def test_one_that_others_may_enter_or_read_is_refused(tmp_path: Path, others: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(others)
    with pytest.raises(InsecurePath, match=f"open has mode {others:04o}, and must have mode 0700"):
        private.folder(tmp_path / "open")


def test_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("folder")
    for name in ("file", "link"):
        with pytest.raises(InsecurePath, match=f"{name} is not a folder"):
            private.folder(tmp_path / name)
    with pytest.raises(InsecurePath, match="file is not a folder"):
        private.folder(tmp_path / "file" / "made")
    with pytest.raises(InsecurePath, match=r"cannot be made: .*No such file or directory"):
        private.folder(tmp_path / "nowhere" / "made")


@pytest.mark.parametrize("writable", [0o777, 0o770])
def test_a_folder_below_one_that_others_may_write_to_is_refused(tmp_path: Path, writable: int) -> None:
    above = tmp_path / "above"
    (above / "between").mkdir(parents=True)
    above.chmod(writable)
    said = f"the folder {above} has mode {writable:04o}: other users can replace what is below it"
    with pytest.raises(InsecurePath, match=re.escape(said)):
        private.folder(above / "between" / "made")
    assert not (above / "between" / "made").exists()


def test_below_a_sticky_folder_it_is_made(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o1777)
    assert mode(private.folder(above / "made")) == 0o700


@needs_root
@pytest.mark.parametrize("where", ["made", "made/between"])
def test_a_folder_of_another_user_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "made").mkdir()
    os.chown(tmp_path / "made", NOBODY, NOBODY)
    (tmp_path / "made").chmod(0o700)
    with pytest.raises(InsecurePath, match=f"made belongs to user {NOBODY}"):
        private.folder(tmp_path / where)


# Files


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_file_is_made_for_this_user_alone_and_found_again(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        file = private.open_file(tmp_path / "file", os.O_WRONLY | os.O_APPEND)
    finally:
        os.umask(before)
    os.write(file, b"one ")
    os.close(file)
    assert mode(tmp_path / "file") == 0o600
    file = private.open_file(tmp_path / "file", os.O_WRONLY | os.O_APPEND)
    os.write(file, b"two")
    assert not os.get_inheritable(file)
    os.close(file)
    assert (tmp_path / "file").read_text() == "one two"


def test_a_link_is_not_followed_whether_or_not_it_leads_anywhere(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "link").symlink_to("victim")
    (tmp_path / "dangling").symlink_to("made")
    for name in ("link", "dangling"):
        with pytest.raises(InsecurePath, match=f"{name} is a symbolic link, and must be a regular file"):
            private.open_file(tmp_path / name, os.O_WRONLY | os.O_APPEND)
    assert (tmp_path / "victim").read_text() == "untouched"
    assert not (tmp_path / "made").exists()


def test_a_file_with_a_second_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    os.link(tmp_path / "victim", tmp_path / "link")
    with pytest.raises(InsecurePath, match="link is a file with 2 names, and must have one"):
        private.open_file(tmp_path / "link", os.O_WRONLY | os.O_APPEND)


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDONLY])
def test_pipe_is_refused_without_waiting(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InsecurePath, match="pipe is not a regular file"):
        private.open_file(tmp_path / "pipe", flags)


@pytest.mark.parametrize("others", [0o644, 0o664, 0o666, 0o640])
def test_an_own_file_that_others_may_open_is_closed_to_them_and_keeps_its_text(tmp_path: Path, others: int) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "file").chmod(others)
    os.close(private.open_file(tmp_path / "file", os.O_RDWR))
    assert mode(tmp_path / "file") == 0o600
    assert (tmp_path / "file").read_text() == "before"


@needs_root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o600)
    os.chown(tmp_path / "file", NOBODY, NOBODY)
    with pytest.raises(InsecurePath, match=f"file belongs to user {NOBODY}, and must belong to user {ME}"):
        private.open_file(tmp_path / "file", os.O_RDWR)
