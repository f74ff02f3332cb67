"""What another user of this machine does: programs that run as user 65534."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.patience import PATIENCE_S

NOBODY = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can run a program as another user: run these tests as root"
)

DROP = f"""
import json, os, select, socket, stat, sys, time
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
os.umask(0)
os.chdir("/")

def say(what):
    print(json.dumps(what), flush=True)

"""


class OtherUser:
    """One such program."""

    def __init__(self, program: str, *arguments: object, imports: str = "") -> None:
        command = [sys.executable, "-P", "-c", imports + DROP + dedent(program), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> Any:
        """The next thing that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the program of the other user ended with {self._process.wait(PATIENCE_S)}"
        return json.loads(line)

    def go_on(self) -> None:
        """Let its `input()` return."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may write to, and is not sticky, as Ray's session folder; not below pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="atk"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def other_user(program: str, *arguments: object, imports: str = "") -> Iterator[OtherUser]:
    """Run a program as another user; it is killed at the end. It has `say`, which the caller hears by `says`.

    `imports` come first, while it is still root: the interpreter and its packages may lie in root's home.
    """
    running = OtherUser(program, *arguments, imports=imports)
    try:
        yield running
    finally:
        running.close()
