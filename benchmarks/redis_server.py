"""A Redis server that keeps every write in its file, and can be killed and started again."""

import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PROGRAM = shutil.which("redis-server")
START_S = 20.0


class RedisServer:
    """Listens on a Unix socket."""

    def __init__(self, folder: Path) -> None:
        """Nothing is started yet. `folder`: where its socket and its file are."""
        self._folder = folder
        self._socket = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = url(folder)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def start(self) -> None:
        """Return when it answers. Raises `TimeoutError`."""
        assert PROGRAM is not None, "redis-server is installed"
        options = ("--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._folder), "--save", "")
        self._process = subprocess.Popen(
            (PROGRAM, *options, "--appendonly", "yes", "--appendfsync", "always"), stdout=subprocess.DEVNULL
        )
        until = time.monotonic() + START_S
        while not self._answers():
            if time.monotonic() > until:
                raise TimeoutError("redis-server does not answer")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it without any notice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._socket.unlink(missing_ok=True)

    def _answers(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(self._socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")  # it says -LOADING while it reads its file
        return False


def url(folder: Path) -> str:
    """The URL of the server whose files are in this folder."""
    return f"unix://{folder / 'redis.sock'}"


def version() -> str:
    assert PROGRAM is not None, "redis-server is installed"
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    return said.partition("v=")[2].partition(" ")[0]
