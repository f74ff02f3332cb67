"""Which replicas can be forks of one process that has imported their app."""

from dataclasses import dataclass, replace

import pytest

from app_toolkit.config.models import ApplicationConfig, DeploymentConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.host.preparation import Preparation
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.types import ReplicaId

SPEC = ReplicaSpec(ReplicaId("a"), "shop", DeploymentConfig(name="web"), "shop:app", ".", "", ReloadableOptions(10))


def prepared(**facts: object) -> Preparation:
    return Preparation.of(replace(SPEC, **facts))


@dataclass(frozen=True)
class LaterSpec(ReplicaSpec):
    """A spec that has another field."""

    later: str = ""


@pytest.mark.parametrize(
    "facts",
    [
        {"id": ReplicaId("b"), "revision": 2, "created": 2},
        {"config": DeploymentConfig(name="chat"), "root_path": "/shop", "callees": ("model",), "edge": {"port": 0}},
        {"reloadable": ReloadableOptions(20, user_config={"size": 1})},
        {"application_config": ApplicationConfig(keep_revisions=5)},
    ],
)
def test_what_is_read_after_the_fork_or_only_by_the_controller_needs_no_other_import(facts: dict[str, object]) -> None:
    assert prepared(**facts) == prepared()
    assert prepared(**facts).key == prepared().key


@pytest.mark.parametrize(
    "preparation",
    [
        prepared(restarted=2),
        prepared(variables={"KEY": "v1"}),
        prepared(reloadable=ReloadableOptions(10, secrets=("s3cret",))),
        prepared(application_config=ApplicationConfig(fork=False)),
        prepared(application_config=ApplicationConfig(logging_config={"version": 1})),
        Preparation.of(LaterSpec(**{name: getattr(SPEC, name) for name in SPEC.__slots__}, later="x")),
    ],
)
def test_anything_else_needs_another_import(preparation: Preparation) -> None:
    assert preparation != prepared()
    assert preparation.key != prepared().key
