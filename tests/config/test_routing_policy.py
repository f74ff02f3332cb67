"""The option `routing_policy` of a class: the built-in policy, or the import path of a function."""

import pytest

from app_toolkit.config.models import ClassConfig, DeploymentConfig
from app_toolkit.errors import ConfigError


@pytest.mark.parametrize(
    "option", [None, "prefix", "routing:choose", "shop.routing:Policies.choose", "my-routing:choose"]
)
def test_callers_apply_the_policy_of_a_class(option: str | None) -> None:
    config = ClassConfig(name="writer", routing_policy=option)
    assert config.policy.routing_policy == option
    assert config.without_effect(()) == (() if option is None else ("routing_policy",))


@pytest.mark.parametrize(
    "option", ["", "prefixes", "routing:", ":choose", "a..b:choose", "routing:choose:it", "routing:1"]
)
def test_another_value_is_refused_in_one_sentence(option: str) -> None:
    should_be = "should be prefix, or the import path of a function, such as package.module:function"
    with pytest.raises(ConfigError, match=f"^routing_policy = '{option}': {should_be}$"):
        ClassConfig(name="writer", routing_policy=option)


def test_a_function_of_main_is_refused_because_replicas_cannot_import_it() -> None:
    with pytest.raises(ConfigError, match="other processes cannot import a function of __main__: put it into a module"):
        ClassConfig(name="writer", routing_policy="__main__:choose")


def test_an_ingress_has_no_policy_because_proxies_do_not_import_code() -> None:
    with pytest.raises(ConfigError, match="DeploymentConfig has no option 'routing_policy'"):
        DeploymentConfig(name="web", routing_policy="prefix")  # type: ignore[call-arg]
    assert DeploymentConfig(name="web").policy.routing_policy is None
