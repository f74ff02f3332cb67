"""A client sees the same of an application in every form in which it runs.

`control` is a second bare server. A probe that differs there is not deterministic.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S

from .client import Client, Observation
from .conftest import observe
from .differences import comparable
from .probes import PROBES
from .servers import FORMS


@pytest.mark.parametrize("name", PROBES)
def test_a_client_sees_the_same_as_from_bare_uvicorn(
    name: str, form: str, port: int, bare_port: int, expected: Callable[[str], Observation], tmp_path: Path
) -> None:
    seen = observe(name, port, tmp_path)
    assert comparable(name, form, seen, port) == comparable(name, form, expected(name), bare_port)


INGRESSES = ("inputs", "outputs", "live")


async def lifespans_of_each_ingress(client: Client) -> dict[str, Any]:
    answers = {name: await client.ask("GET", f"/{name}/lifespans") for name in INGRESSES}
    return {name: json.loads(answer["body"]) for name, answer in answers.items()}


def test_the_lifespan_of_a_router_runs_only_in_its_ingress(form: str, port: int, tmp_path: Path) -> None:
    found = asyncio.run(lifespans_of_each_ingress(Client(port, tmp_path)))
    if FORMS[form].ingresses == 1:
        expected = {name: ["app", "inputs", "live", "outputs"] for name in INGRESSES}
    else:
        expected = {name: sorted(["app", name]) for name in INGRESSES}
    assert {name: each["ran"] for name, each in found.items()} == expected


def test_every_replica_answers(form: str, port: int, tmp_path: Path) -> None:
    """Or else a form with two replicas would show no more than one with one."""
    processes: dict[str, set[int]] = {name: set() for name in INGRESSES}
    replicas = FORMS[form].replicas

    async def ask_until_all_answered() -> None:
        client = Client(port, tmp_path)
        async with asyncio.timeout(PATIENCE_S):
            while any(len(known) < replicas for known in processes.values()):
                for name, found in (await lifespans_of_each_ingress(client)).items():
                    processes[name].add(found["process"])

    asyncio.run(ask_until_all_answered())
    assert {len(known) for known in processes.values()} == {replicas}
    assert len(set.union(*processes.values())) == replicas * FORMS[form].ingresses
