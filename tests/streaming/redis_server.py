"""A Redis server of a test."""

import shutil
import subprocess
from pathlib import Path

import pytest
import redis

from tests.patience import PATIENCE_S, wait_until


class RedisServer:
    """A server on a Unix socket, whose data is in a folder, so that it can be ended and started again.

    `port`: also listen on this port of 127.0.0.1.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server is on PATH")
        self._program = program
        self._folder = folder
        self._port = port
        self._socket = folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}"

    def start(self) -> None:
        options = ["--bind", "127.0.0.1", "--port", str(self._port)]
        options += ["--unixsocket", str(self._socket), "--dir", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            # With `appendfsync everysec`, a server that is killed may have answered writes that are not in its file.
            self._process = subprocess.Popen(
                [self._program, *options, "--save", "", "--appendonly", "yes", "--appendfsync", "always"],
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers)

    def end(self, kill: bool = False) -> None:
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait(PATIENCE_S)
            self._process = None
        self._socket.unlink(missing_ok=True)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False
