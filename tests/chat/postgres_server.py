"""A PostgreSQL server of a test."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_until

ACCOUNT = "nobody"
"""The user of the operating system whose process the server is if the tests run as root, which PostgreSQL refuses."""


def program(name: str) -> str | None:
    """The path of a program, which Debian does not put on PATH; None: it is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, reversed(folders))))


class PostgresServer:
    """A server on a Unix socket, whose data is in a folder of its own."""

    def __init__(self) -> None:
        initdb, postgres = program("initdb"), program("postgres")
        if initdb is None or postgres is None:
            pytest.skip("PostgreSQL is not installed")
        self._folder = Path(tempfile.mkdtemp(prefix="pg"))  # the path of a socket has at most 107 bytes
        self._user = ACCOUNT if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user)
        self._databases = 0
        data = str(self._folder / "data")
        options = ["--auth=trust", "--username=tests", "--no-sync", "--encoding=UTF8", "--locale=C"]
        self._run(initdb, "-D", data, *options)
        self._process = subprocess.Popen(
            [postgres, "-D", data, "-k", self._folder, "-c", "listen_addresses=", "-c", "fsync=off"],
            user=self._user,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: self._sql("SELECT 1", check=False))

    def database(self) -> str:
        """Create a database. Returns its URL."""
        self._databases += 1
        name = f"tests{self._databases}"
        self._sql(f"CREATE DATABASE {name}")
        return f"postgresql://tests@/{name}?host={self._folder}"

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        shutil.rmtree(self._folder)

    def _sql(self, statement: str, check: bool = True) -> bool:
        psql = program("psql")
        assert psql is not None
        return self._run(psql, "-h", str(self._folder), "-U", "tests", "-c", statement, "postgres", check=check)

    def _run(self, *command: str, check: bool = True) -> bool:
        done = subprocess.run(
            command, user=self._user, cwd=self._folder, check=False, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.returncode == 0
