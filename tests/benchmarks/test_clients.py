"""The suite of chat clients: those that the tests have installed, and the relay."""

import asyncio
import importlib.util
import json
import socket
import sys
import threading

import pytest

from app_toolkit.userapp.loading import load
from benchmarks.conformance.clients import APPS, NOT_SERVED, PASSED
from benchmarks.conformance.relay import cutting
from tests.chat.served import served
from tests.patience import PATIENCE_S


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("module", ["openai", "websockets", "langchain", "httpx_sse"])
async def test_the_cases_of_a_python_client_pass(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"langchain": "langchain_openai"}.get(module, module)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: python -m benchmarks.conformance clients installs it")
    monkeypatch.setattr(sys, "path", list(sys.path))
    async with served(load("chats:app", str(APPS))) as url:
        with cutting(int(url.rpartition(":")[2]), 1_500) as relay:
            arguments = (sys.executable, str(APPS / f"{module}_client.py"), url, f"http://127.0.0.1:{relay}")
            process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
            async with asyncio.timeout(PATIENCE_S):
                out, _ = await process.communicate()
    verdicts = json.loads(out)
    assert verdicts
    assert set(verdicts.values()) <= {PASSED, NOT_SERVED}, verdicts


def read(client: socket.socket, into: bytearray) -> None:
    while data := client.recv(1 << 20):
        into += data


@pytest.mark.parametrize("after", [1, 70_000])
def test_the_relay_resets_a_connection_after_the_bytes(after: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                received.append(connection.recv(100))
                connection.sendall(b"x" * 100_000)
                connection.recv(1)

        received: list[bytes] = []
        thread = threading.Thread(target=answer)
        thread.start()
        with cutting(server.getsockname()[1], after) as port:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
                client.sendall(b"hello")
                found = bytearray()
                with pytest.raises(ConnectionResetError):
                    read(client, found)
            thread.join(PATIENCE_S)
    assert received == [b"hello"]
    assert len(found) <= after
