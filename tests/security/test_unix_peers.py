"""On a Unix socket each end looks at the user of the other one before it says or reads anything."""

import asyncio
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app_toolkit.replica.http.reach import ask
from app_toolkit.types import Address
from app_toolkit.wire.preface import first_line
from tests.patience import PATIENCE_S
from tests.replica.client import SECRET, Serve, field
from tests.security.hostile import Trap, calls_in_vain, trapped, turned_away
from tests.security.other_user import NOBODY, needs_root, other_user, shared_folder

pytestmark = [
    needs_root,
    pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who is at the other end"),
]

SOURCE = """
    from app_toolkit.calls.served_calls import Calls
    from app_toolkit.calls.hosted_object import Instance

    class Model:
        async def double(self, number):
            return 2 * number

    app = Calls(Instance(Model, name="model"))
"""

HTTP = """
    app = FastAPI()

    @app.get("/secret")
    async def secret():
        mark("asked")
        return "secret"
"""

TAKE_OVER = """
    path, answer = sys.argv[1], bytes.fromhex(sys.argv[2])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen()
    say("listens")
    while True:
        connection, _ = listener.accept()
        heard = b""
        try:
            connection.sendall(answer)
            while data := connection.recv(65536):
                heard += data
        except (BrokenPipeError, ConnectionResetError):
            pass  # by who has not read all of the answer
        say(heard.hex())
        connection.close()
"""
"""Listen where a replica was, and answer whatever comes."""


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


@pytest.fixture
def serve() -> Iterator[Serve]:
    serve = Serve()
    yield serve
    serve.close()


@pytest.mark.anyio
async def test_caller_sends_nothing_if_another_user_owns_the_socket(
    shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = Address(f"unix:{shared}/r.sock")
    with other_user(TAKE_OVER, shared / "r.sock", b"HTTP/1.1 200 OK\r\n\r\n".hex()) as other:
        assert other.says() == "listens"
        said = await turned_away(SECRET, address)
        assert f"user {NOBODY} is at the other end, and must be user 0 or root" in said
        assert f"nothing was sent to {address}" in caplog.text
        assert await asyncio.to_thread(other.says) == ""


def test_health_check_sends_nothing_if_another_user_owns_the_socket(shared: Path) -> None:
    with other_user(TAKE_OVER, shared / "r.sock", b"HTTP/1.1 204 No Content\r\n\r\n".hex()) as other:
        assert other.says() == "listens"
        with pytest.raises(PermissionError, match=f"user {NOBODY} is at the other end"):
            ask(str(shared / "r.sock"), SECRET, PATIENCE_S)
        assert other.says() == ""


@pytest.mark.anyio
async def test_calling_replica_unpickles_nothing_if_another_user_owns_the_socket(shared: Path, tmp_path: Path) -> None:
    trap = tmp_path / "unpickled"
    with other_user(TAKE_OVER, shared / "r.sock", trapped(trap).hex()) as other:
        assert other.says() == "listens"
        await calls_in_vain(SECRET, Address(f"unix:{shared}/r.sock"))
        assert await asyncio.to_thread(other.says) == ""
    assert not trap.exists()
    pickle.loads(pickle.dumps(Trap(trap)))
    assert trap.exists(), "the trap works"


KNOCK = """
    for path, said in json.loads(sys.argv[1]):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except OSError as error:
            say(type(error).__name__)
            continue
        try:
            connection.sendall(bytes.fromhex(said))
            heard = connection.recv(65536)
        except (BrokenPipeError, ConnectionResetError):
            heard = b""
        say(heard.hex())
        connection.close()
    input()
"""


def test_a_replica_reads_nothing_from_another_user(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(HTTP)
    path = served.address.removeprefix("unix:")
    name, value = field()
    asked = b"GET /secret HTTP/1.1\r\n%b: %b\r\nhost: a\r\n\r\n" % (name.encode(), value)
    attacks = [(path, said.hex()) for said in (asked, b"GET /secret HTTP/1.1\r\nhost: a\r\n\r\n", first_line())]
    with other_user(KNOCK, json.dumps(attacks)) as other:
        assert [other.says() for _ in attacks] == ["PermissionError"] * 3
    # As if the folder, and the file, had been opened up.
    served.folder.chmod(0o755)
    os.chmod(path, 0o777)
    with other_user(KNOCK, json.dumps(attacks)) as other:
        assert [other.says() for _ in attacks] == [""] * 3
    assert f"closing a connection before reading from it: user {NOBODY} is at the other end" in caplog.text
    assert not served.marked("asked")
    assert served.connect().ask("/secret", hop=None).read() == b'"secret"'
    assert served.marked("asked")


def test_process_of_another_user_accepts_only_root_and_itself() -> None:
    """Root could read and change that process anyway; so `sudo curl --unix-socket` works."""
    program = """
        path = sys.argv[1] + "/r.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o777)
        listener.listen()
        say("listens")

        def judge(connection):
            try:
                check_peer(connection)
            except PermissionError as error:
                return str(error)
            return "accepted"

        mine = socket.socket(socket.AF_UNIX)
        mine.connect(path)
        say(judge(listener.accept()[0]))
        for _ in range(2):
            input()
            say(judge(listener.accept()[0]))
    """
    imports = "from app_toolkit.wire.sockets import check_peer\n"
    with shared_folder() as folder, other_user(program, folder, imports=imports) as other:
        assert other.says() == "listens"
        assert other.says() == "accepted"
        with socket.socket(socket.AF_UNIX) as root:
            root.connect(f"{folder}/r.sock")
            other.go_on()
            assert other.says() == "accepted"
        third = "import os, socket, sys; os.setresuid(1, 1, 1); socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        subprocess.run([sys.executable, "-c", third, f"{folder}/r.sock"], check=True)
        other.go_on()
        assert other.says() == f"user 1 is at the other end, and must be user {NOBODY} or root"
