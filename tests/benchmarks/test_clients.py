"""The suite of chat clients: those that the tests have installed, the relay, and what is kept and shown."""

import asyncio
import importlib.util
import json
import socket
import sys
import threading
from typing import Any

import pytest

from app_toolkit.userapp.loading import load
from benchmarks.conformance.clients import APPS, CLIENTS, NOT_SERVED, PASSED, differences, merged
from benchmarks.conformance.relay import cutting
from benchmarks.conformance.report import clients_table, document
from tests.chat.served import served
from tests.patience import PATIENCE_S

ONE, OTHER = (each.title for each in CLIENTS[:2])


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


def found(**cases: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {"versions": dict.fromkeys(cases, "1.0"), "cases": cases}


def test_a_case_without_routes_is_no_difference_and_any_other_is() -> None:
    cases = {ONE: {"a": {"dev": PASSED, "uvicorn": NOT_SERVED}, "b": {"dev": "Error: no"}}}
    assert list(differences(cases)) == [{"where": f"{ONE}: b", "dev": "Error: no"}]


def test_a_form_that_is_run_again_keeps_the_others() -> None:
    before = found(
        **{ONE: {"a": {"uvicorn": PASSED, "dev": "no"}, "gone": {"dev": PASSED}}, OTHER: {"c": {"dev": "no"}}}
    )
    after = merged(before, found(**{ONE: {"a": {"dev": PASSED}, "new": {"dev": PASSED}}}))
    assert after["cases"] == {
        ONE: {"a": {"uvicorn": PASSED, "dev": PASSED}, "new": {"dev": PASSED}},
        OTHER: {"c": {"dev": "no"}},
    }
    assert [each["where"] for each in after["differences"]] == [f"{OTHER}: c"]


def test_the_page_counts_the_cases_and_names_those_that_fail() -> None:
    cases = {"a": {"dev": PASSED, "uvicorn": PASSED}, "b": {"dev": "Error: no"}, "c": {"uvicorn": NOT_SERVED}}
    results = merged({}, found(**{ONE: cases, OTHER: {"d": {"dev": PASSED}}}))
    assert clients_table(results).splitlines()[2:] == [
        f"| {ONE} 1.0 | 1/1, 1 not served | 1/2 |",
        f"| {OTHER} 1.0 |  | 1/1 |",
    ]
    page = document({"clients": {"date": "2026-11-23", **results}})
    assert "## Chat clients" in page
    assert f"- {ONE}: a; b; c\n- {OTHER}: d\n" in page
    assert f"- {ONE}: b; Error: no" in page
