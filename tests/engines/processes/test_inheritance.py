"""What prevents a fork: each case in a process of its own."""

import pytest

from tests import prepared

PROGRAM = """
import asyncio, json, logging, selectors, socket, sys, tempfile, threading
from app_toolkit.engines.processes.inheritance import Inheritance

server = socket.create_server(("127.0.0.1", 0))
before = asyncio.new_event_loop()
inheritance = Inheritance()
exec(sys.argv[1])
print(json.dumps(inheritance.obstacles()))
"""


@pytest.mark.parametrize(
    ("code", "obstacles"),
    [
        ("", []),
        ("file = tempfile.TemporaryFile()", []),
        ("listener = socket.create_server(('127.0.0.1', 0))", []),
        ("datagrams = socket.socket(type=socket.SOCK_DGRAM); datagrams.connect(('127.0.0.1', 9))", []),
        ("asyncio.new_event_loop().close()", []),
        ("lock = asyncio.Lock()", []),
        ("loop = asyncio.new_event_loop()", ["it creates an event loop", "it opens a connection"]),
        ("selector = selectors.DefaultSelector()", ["it creates an event loop"]),
        ("client = socket.create_connection(server.getsockname())", ["it opens a connection"]),
        (
            "threading.Thread(target=threading.Event().wait, name='poller', daemon=True).start()",
            ["it starts the threads poller"],
        ),
    ],
)
def test_threads_event_loops_and_connections_prevent_a_fork(code: str, obstacles: list[str]) -> None:
    done = prepared.run(PROGRAM, code)
    assert done.stdout.strip() == str(obstacles).replace("'", '"')
