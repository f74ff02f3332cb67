"""Every option of Ray Serve and of Ray's actors exists here, or has a sentence that says what to use instead."""

import ast
import inspect
import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ray.runtime_env import RuntimeEnv

from app_toolkit import AutoscalingConfig, DeploymentConfig
from app_toolkit.config.files import ApplicationOptions
from app_toolkit.config.models import RUNTIME_ENV, CallOptions, ClassConfig, Model, RayOptions, ResourceOptions
from app_toolkit.config.options import InstanceOptions
from app_toolkit.config.suggestions import OTHER_NAMES, suggestion
from app_toolkit.errors import ConfigError

RAY = Path(str((find_spec("ray") or pytest.fail("there is no Ray")).origin)).parent
"""Its sources are read and not imported: Ray Serve needs packages that are not installed here."""


ELSEWHERE = {"applications", "user_config", "tracing_config", "controller_options"}
"""A part of the file, an option of classes alone, and two of Ray Serve's own processes."""


def tree(file: str) -> list[ast.stmt]:
    return ast.parse((RAY / "serve" / file).read_text("utf-8")).body


def fields(file: str, name: str) -> set[str]:
    [found] = [each for each in tree(file) if isinstance(each, ast.ClassDef) and each.name == name]
    return {
        each.target.id for each in found.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def parameters(file: str, name: str) -> set[str]:
    [found] = [each for each in tree(file) if isinstance(each, ast.FunctionDef) and each.name == name]
    return {each.arg for each in found.args.args if not each.arg.startswith("_")}


def refused(model: type[Model], option: str, needed: dict[str, Any]) -> str:
    try:
        model(**needed, **{option: "any"})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("theirs", "model"),
    [
        (parameters("api.py", "deployment"), DeploymentConfig),
        (fields("schema.py", "DeploymentSchema"), ClassConfig),
        (fields("schema.py", "RayActorOptionsSchema"), ResourceOptions),
        (fields("config.py", "AutoscalingConfig"), AutoscalingConfig),
        (fields("schema.py", "HTTPOptionsSchema") | fields("schema.py", "ServeDeploySchema"), InstanceOptions),
        (fields("schema.py", "ServeApplicationSchema") - {"name", "host", "port", "deployments"}, ApplicationOptions),
    ],
    ids=["decorator", "deployment", "actor", "autoscaling", "instance", "application"],
)
def test_option_of_ray_serve_exists_or_the_error_names_a_replacement(
    theirs: Collection[str], model: type[Model]
) -> None:
    assert theirs
    tables = {"resources": ResourceOptions.model_fields, "ray": RayOptions.model_fields}
    suggested = {
        option: suggestion(option, (), tables) for option in set(theirs) - model.model_fields.keys() - ELSEWHERE
    }
    assert [option for option, sentence in suggested.items() if not sentence] == []


def test_suggestion_is_an_option() -> None:
    options = set[str]()
    for model in (
        ClassConfig,
        ResourceOptions,
        RayOptions,
        AutoscalingConfig,
        InstanceOptions,
        ApplicationOptions,
        CallOptions,
    ):
        options |= model.model_fields.keys()
    for suggested in OTHER_NAMES.values():
        assert set(re.findall(r"'(\w+)'", suggested)) <= options, suggested


@pytest.mark.parametrize(
    ("model", "option", "suggested"),
    [
        (
            DeploymentConfig,
            "max_concurrent_queries",
            "has no option 'max_concurrent_queries'; use 'max_ongoing_requests'",
        ),
        (DeploymentConfig, "min_replicas", "has no option 'min_replicas'; it belongs in 'autoscaling_config'"),
        (DeploymentConfig, "num_gpus", "has no option 'num_gpus'; it belongs in 'resources'"),
        (DeploymentConfig, "max_replicas_per_nod", "did you mean 'max_replicas_per_node'?"),
        (ResourceOptions, "max_restarts", "the controller replaces replicas, and 'retry' says which requests"),
        (AutoscalingConfig, "smoothing_factor", "use 'upscaling_factor' and 'downscaling_factor'"),
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
