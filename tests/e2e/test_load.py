"""The requests of each deployment, as `app-toolkit status` shows them."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from app_toolkit.cli import main as command_line
from app_toolkit.core.status import Load
from app_toolkit.planning import plan
from tests.cluster import E2E, Cluster
from tests.docs.pages import page
from tests.engines.contract.ground import Ground
from tests.patience import PATIENCE_S

from . import held

pytestmark = pytest.mark.anyio


class Connected:
    """The session's instance, as the command finds it; the session keeps it."""

    def __init__(self, cluster: Cluster) -> None:
        self.execute = cluster.client.execute
        self.load = cluster.client.load

    def close(self) -> None: ...


async def test_page_shows_the_output_of_the_command(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = page("docs/queues.md").shown("console")
    served = cluster.apply(plan(held.app, target=f"{held.__name__}:app", app_dir=str(E2E.parents[1])))

    async def until(expected: dict[str, Load]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not expected.items() <= (await asyncio.to_thread(cluster.client.load)).items():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
        counts = [3] * 11 + [4]
        asked = [
            asyncio.create_task(client.get(f"/write/{count}", params={"ground": str(tmp_path)})) for count in counts
        ]
        await until({"default/app": Load(0, 0, 12, 0), "default/writer": Load(0, 5, 32, 8)})
        assert printed(cluster, monkeypatch, capsys) == shown
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    Ground(tmp_path).open("hold")
    await until({"default/app": Load(0, 0, 0, 0), "default/writer": Load(0, 0, 0, 0)})
    await asyncio.to_thread(served.delete)


def printed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What is typed, and what comes of it; of the application of this test alone."""
    monkeypatch.setattr(command_line, "connect", lambda _: Connected(cluster))
    with pytest.raises(SystemExit):
        command_line.main(["status"])
    _, _, ours = capsys.readouterr().out.partition("application default at ")
    ours = ours.partition("\n")[2]
    ours = ours.partition("application ")[0]
    for number, replica in enumerate(dict.fromkeys(re.findall(r"default\.writer-\d+-\d+", ours)), 1):
        ours = ours.replace(replica, f"default.writer-1-{number}")
    return f"$ app-toolkit status\napplication default at http://127.0.0.1:8000, revision 1\n{ours}"
