"""Whatever a client can see of an application, it sees the same in every form in which it can run.

`control` is a second bare server: where it differs, a probe is not deterministic, and says nothing about the
others.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .client import Client, Observation
from .conftest import observe
from .differences import comparable
from .probes import PROBES


@pytest.mark.parametrize("name", PROBES)
def test_a_client_sees_what_bare_uvicorn_shows(
    name: str,
    form: str,
    port: int,
    bare_port: int,
    expected: Callable[[str], Observation],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    seen = observe(name, port, tmp_path_factory)
    proxied = form not in ("control", "embedded")
    assert comparable(name, seen, port, proxied) == comparable(name, expected(name), bare_port, proxied)


def test_a_router_s_lifespan_runs_only_where_the_router_is_served(
    form: str, port: int, tmp_path: Path
) -> None:
    async def told() -> dict[str, list[str]]:
        client = Client(port, tmp_path)
        answers = {
            name: await client.ask("GET", f"/{name}/lifespans") for name in ("inputs", "outputs", "live")
        }
        return {name: json.loads(answer["body"])["ran"] for name, answer in answers.items()}

    everything = ["app", "inputs", "live", "outputs"]
    if form in ("control", "embedded"):
        assert asyncio.run(told()) == {"inputs": everything, "outputs": everything, "live": everything}
    else:
        assert asyncio.run(told()) == {
            "inputs": ["app", "inputs"],
            "outputs": ["app", "outputs"],
            "live": ["app", "live"],
        }
