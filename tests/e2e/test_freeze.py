"""A frozen application on processes."""

from collections.abc import Iterator

import pytest

from app_toolkit.cli.main import main as command_line
from app_toolkit.control.freeze import Unfreeze
from app_toolkit.control.operations import Deploy
from app_toolkit.errors import ApplicationFrozen
from app_toolkit.operate.instance import Instance
from tests.cluster import Cluster, Served


@pytest.fixture
def served(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("versions:one")
    yield served
    processes.client.execute(Unfreeze(served.spec.name))
    served.delete()


def test_a_freeze_holds_for_every_client_until_it_ends(
    processes_found: Cluster, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    processes, name = processes_found, served.spec.name
    instance = Instance(processes.client)
    instance.freeze(name, reason="the sale ends on Monday")
    why = f"application '{name}' is frozen: the sale ends on Monday"
    with pytest.raises(ApplicationFrozen, match=why):
        instance.change(Deploy(served.spec.model_copy(update={"target": "versions:two"}), owner=processes.client.owner))
    with pytest.raises(SystemExit, match="2"):
        command_line(["delete", name])
    assert why in capsys.readouterr().err
    deployment = served.spec.default
    instance.scale(f"{name}/{deployment}", 2)
    with served.client() as client:
        assert client.get("/both").json() == ["one", "one"]
    instance.unfreeze(name)
    assert served.status()["facts"]["frozen"] is None
    assert processes.update(served.spec.model_copy(update={"target": "versions:two"})) == 3
