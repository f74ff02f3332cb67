"""The private folder of each session of an engine: its own, not another user's, and gone some time after it."""

import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app_toolkit.config.settings import runtime_folder
from app_toolkit.errors import InsecurePath
from app_toolkit.host.runtime_folder import LOGS, LOGS_KEPT_S, RuntimeFolder, check_runtime_folder
from tests.security.other_user import NOBODY, needs_root, other_user, shared_folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


def test_a_folder_belongs_to_one_session_and_is_private(base: Path) -> None:
    with closing(RuntimeFolder("one", base)) as one, closing(RuntimeFolder("other", base)) as other:
        assert one.path != other.path
        assert {stat.S_IMODE(path.stat().st_mode) for path in (base, one.path, one.folder("logs"))} == {0o700}


def test_processes_of_one_session_share_a_folder(base: Path) -> None:
    with closing(RuntimeFolder("one", base)) as one, closing(RuntimeFolder("one", base)) as same:
        (one.path / "r.sock").touch()
        assert (same.path / "r.sock").exists()


def test_the_next_session_removes_a_folder_when_its_processes_have_ended(base: Path) -> None:
    first, second = RuntimeFolder("one", base), RuntimeFolder("one", base)
    (first.folder("artifacts") / "app.py").touch()
    (first.path / "r.sock").touch()
    (first.path / "link").symlink_to("/")
    first.close()
    with closing(RuntimeFolder("two", base)):
        assert (base / "one" / "r.sock").exists(), "a process of it lives"
    second.close()
    with closing(RuntimeFolder("three", base)):
        assert [path.name for path in base.iterdir()] == ["three"]


def test_a_killed_process_does_not_hold_its_folder(base: Path) -> None:
    program = "import sys; from pathlib import Path; from app_toolkit.host.runtime_folder import RuntimeFolder;"
    program += "folder = RuntimeFolder('one', Path(sys.argv[1])); print(folder.path, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, base], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            held = Path(process.stdout.readline().strip())
            with closing(RuntimeFolder("two", base)):
                assert held.is_dir()
        finally:
            process.kill()
    with closing(RuntimeFolder("two", base)):
        assert not held.exists()


def test_a_forked_child_does_not_hold_the_folder(base: Path) -> None:
    ours, its = socket.socketpair()
    with ours, its:
        with closing(RuntimeFolder("one", base)) as one:
            path = one.path
            child = os.fork()
            if child == 0:
                its.send(b"runs")
                its.recv(1)
                os._exit(0)
            assert ours.recv(4) == b"runs"
        try:
            with closing(RuntimeFolder("two", base)):
                assert not path.exists()
        finally:
            ours.send(b"x")
            os.waitpid(child, 0)


def test_logs_are_kept_for_a_week(base: Path) -> None:
    with closing(RuntimeFolder("one", base)) as one:
        log = one.folder(LOGS) / "access-proxy.log"
        log.write_text("a line\n")
        (one.path / "r.sock").touch()
    with closing(RuntimeFolder("two", base)):
        assert [path.name for path in (base / "one").iterdir()] == [LOGS]
        assert log.read_text() == "a line\n"
    old = time.time() - LOGS_KEPT_S - 1
    os.utime(log, (old, old))
    with closing(RuntimeFolder("two", base)):
        assert not (base / "one").exists()


def test_the_folder_is_in_the_temporary_files_or_where_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("APP_TOOLKIT_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert runtime_folder() == tmp_path / f"app_toolkit-{os.geteuid()}"
    monkeypatch.setenv("APP_TOOLKIT_RUNTIME_DIR", "/run/shop")
    assert runtime_folder() == Path(f"/run/shop/app_toolkit-{os.geteuid()}")


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


def test_a_folder_that_others_can_replace_is_refused(shared: Path) -> None:
    said = (
        f"the folder {shared} has mode 0777: other users can replace what is below it; set APP_TOOLKIT_RUNTIME_DIR to"
    )
    for refused in (lambda: check_runtime_folder(shared / "base"), lambda: RuntimeFolder("one", shared / "base")):
        with pytest.raises(InsecurePath, match=re.escape(said)):
            refused()
    assert not list(shared.iterdir())


UNREMOVABLE = """
    base = Path(sys.argv[1])
    ended = RuntimeFolder("one", base)
    unpacked = ended.folder("artifacts") / "unpacked"
    unpacked.mkdir()
    (unpacked / "app.py").touch()
    unpacked.chmod(0o500)
    ended.close()
    kept = RuntimeFolder("two", base)
    left = sorted(path.name for path in base.iterdir())
    say(str(kept.folder("artifacts")))
    input()
    kept.close()
    for session in ("three", "four"):
        RuntimeFolder(session, base).close()
    say([left, sorted(path.name for path in base.iterdir())])
"""


@needs_root
def test_files_of_an_ended_session_that_cannot_be_removed_fail_no_start(shared: Path) -> None:
    shared.chmod(0o1777)  # as a user that is not root, which may remove everything
    imports = "from pathlib import Path; from app_toolkit.host.runtime_folder import RuntimeFolder\n"
    with other_user(UNREMOVABLE, shared / "base", imports=imports) as other:
        foreign = Path(other.says()) / "foreign"
        foreign.mkdir()
        (foreign / "app.py").touch()
        other.go_on()
        assert other.says() == [["two"], ["four", "two"]], "read-only files are removed, and those of others are not"


def test_a_damaged_folder_fails_no_start_and_is_logged(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "app_toolkit")
    with closing(RuntimeFolder("one", base)) as one:
        (one.path / LOGS).touch()  # a file, and no folder
    with closing(RuntimeFolder("two", base)):
        pass
    (said,) = [record for record in caplog.records if "could not be removed" in record.getMessage()]
    assert said.levelname == "DEBUG"
    assert str(base / "one") in said.getMessage()


@needs_root
def test_a_folder_of_another_user_is_refused(shared: Path) -> None:
    shared.chmod(0o1777)
    with other_user(
        "os.mkdir(sys.argv[1], 0o777); say(1); input(); say(os.listdir(sys.argv[1]))", shared / "b"
    ) as other:
        other.says()
        with pytest.raises(InsecurePath, match=f"b belongs to user {NOBODY}, and must belong to user 0; set APP_"):
            RuntimeFolder("one", shared / "b")
        other.go_on()
        assert other.says() == []
