"""What `breakpoint()` does in a replica."""

import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app_toolkit.observability.watchdog import Watchdog
from app_toolkit.replica.breakpoints import Breakpoints
from tests.patience import PATIENCE_S
from tests.replica.client import wait_until


@pytest.fixture(autouse=True)
def _hook() -> Iterator[None]:
    before = sys.breakpointhook
    yield
    sys.breakpointhook = before


def stop_here(seen: list[int]) -> None:
    secret = 41
    breakpoint()
    seen.append(secret)


def test_a_breakpoint_is_one_warning_with_file_and_line_and_the_code_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    Breakpoints(None).install()
    seen: list[int] = []
    for _ in range(3):
        stop_here(seen)
    assert seen == [41, 41, 41]
    line = stop_here.__code__.co_firstlineno + 2
    (said,) = caplog.messages
    assert said.startswith(f"breakpoint() at {__file__}:{line} does nothing in a replica")


@pytest.mark.parametrize("end", [b"c\n", b"q\n", b"p 1\np 2\nc\n", b""])
def test_with_the_flag_a_breakpoint_is_debugged_over_a_socket_of_this_user_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: bytes
) -> None:
    caplog.set_level(logging.WARNING, "app_toolkit.replica")
    tmp_path.chmod(0o700)
    address = tmp_path / "debug.sock"
    Breakpoints(address).install()
    seen: list[int] = []
    thread = threading.Thread(target=stop_here, args=(seen,))
    thread.start()
    try:
        wait_until(lambda: bool(caplog.messages), "it says where it waits")
        assert caplog.messages[0].endswith(f"connect with `nc -U {address}`")
        assert stat.S_IMODE(os.stat(address).st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(str(address))
            said = b""
            while b"(Pdb) " not in said:
                said += client.recv(65_536)
            assert b"seen.append(secret)" in said, "it stops at the line behind"
            client.sendall(b"p secret + 1\n")
            said = b""
            while b"(Pdb) " not in said:
                said += client.recv(65_536)
            assert said.startswith(b"42\n")
            assert not seen
            client.sendall(end)
    finally:
        thread.join(PATIENCE_S)
    assert seen == [41], "the code goes on"
    assert not address.exists()


def test_who_waits_for_a_debugger_is_not_blocked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o700)
    address = tmp_path / "debug.sock"
    Breakpoints(address).install()
    watchdog = Watchdog("shop")
    thread = threading.Thread(target=stop_here, args=([],))
    thread.start()
    wait_until(address.exists, "it waits")
    watchdog.thread_id = thread.ident or 0
    try:
        assert watchdog.is_debugging
    finally:
        with socket.socket(socket.AF_UNIX) as client:
            wait_until(lambda: client.connect_ex(str(address)) == 0, "it listens, which is after the file exists")
            client.sendall(b"c\n")
        thread.join(PATIENCE_S)
