"""The error about an unknown option names the nearest one, or the table in which it belongs."""

import inspect
from typing import Any

import pytest
from ray.runtime_env import RuntimeEnv

from app_toolkit import AutoscalingConfig, DeploymentConfig
from app_toolkit.config.models import RUNTIME_ENV, Model
from app_toolkit.errors import ConfigError


def refused(model: type[Model], option: str, needed: dict[str, Any]) -> str:
    try:
        model(**needed, **{option: "any"})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("model", "option", "suggested"),
    [
        (DeploymentConfig, "min_replicas", "has no option 'min_replicas'; it belongs in 'autoscaling_config'"),
        (DeploymentConfig, "num_gpus", "has no option 'num_gpus'; it belongs in 'resources'"),
        (DeploymentConfig, "max_replicas_per_nod", "did you mean 'max_replicas_per_node'?"),
    ],
)
def test_unknown_option_is_refused_with_a_suggestion(model: type[Model], option: str, suggested: str) -> None:
    assert suggested in refused(model, option, {"name": "any"} if model is DeploymentConfig else {})


def test_nothing_is_suggested_for_a_word_that_resembles_no_option() -> None:
    assert refused(AutoscalingConfig, "xyzzy", {}) == "AutoscalingConfig has no option 'xyzzy'"


def test_the_keys_of_a_runtime_env_are_those_that_the_installed_ray_knows() -> None:
    internal = {"self", "kwargs"}
    keys = (set(inspect.signature(RuntimeEnv.__init__).parameters) | RuntimeEnv.known_fields) - internal
    assert {key for key in keys if not key.startswith("_")} == RUNTIME_ENV


def test_an_actor_with_a_type_of_accelerator_asks_for_the_resource_that_ray_declares() -> None:
    from ray._common.utils import resources_from_ray_options

    from app_toolkit.engines.ray.launcher import ACCELERATOR, ACCELERATOR_SHARE

    assert resources_from_ray_options({"accelerator_type": "L4"}) == {f"{ACCELERATOR}L4": ACCELERATOR_SHARE}
