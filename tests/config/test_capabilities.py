"""The options that have no effect in an engine, by what the engine can do."""

import pytest

from app_toolkit.config.models import Capability, ClassConfig

OPTIONS = ClassConfig(
    name="writer",
    num_replicas=2,
    max_replicas_per_node=1,
    resources={"num_gpus": 1, "custom": {"tpu": 1}, "nice": 5, "ray": {"accelerator_type": "H100"}},
    user_config={},
)
RESERVED = ("resources.num_gpus", "resources.custom", "resources.nice")


@pytest.mark.parametrize(
    ("capabilities", "unapplied"),
    [
        ((), {"num_replicas", "max_replicas_per_node", *RESERVED, "resources.ray.accelerator_type"}),
        (("processes",), {"max_replicas_per_node", *RESERVED, "resources.ray.accelerator_type"}),
        (("processes", "resources", "limits"), {"max_replicas_per_node", "resources.ray.accelerator_type"}),
        (("processes", "nodes", "resources", "ray"), {"resources.nice"}),
    ],
)
def test_options_have_no_effect_without_what_they_need(
    capabilities: tuple[Capability, ...], unapplied: set[str]
) -> None:
    assert set(OPTIONS.without_effect(capabilities)) == unapplied


def test_the_defaults_are_not_listed() -> None:
    assert ClassConfig(name="writer").without_effect(()) == ()
