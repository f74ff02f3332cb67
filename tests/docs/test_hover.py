"""Editors show each option of the user-facing API with its unit and default: as the model of the option says it."""

import ast
from importlib import import_module
from inspect import getsource
from types import ModuleType
from typing import Any

import pytest

from app_toolkit.calls import handle
from app_toolkit.config.fields import description
from app_toolkit.config.models import (
    AutoscalingConfig,
    BatchLimits,
    CallOptions,
    ClassConfig,
    ClassResources,
    RayOptions,
)

deployment = import_module("app_toolkit.declare.deployment")  # the package has a function of this name

KEYWORDS: list[tuple[ModuleType, str, Any]] = [
    (deployment, "ResourceKeywords", ClassResources),
    (deployment, "RayKeywords", RayOptions),
    (deployment, "AutoscalingKeywords", AutoscalingConfig),
    (deployment, "BatchKeywords", BatchLimits),
    (deployment, "DeploymentKeywords", ClassConfig),
    (handle, "CallKeywords", CallOptions),
]
OTHERWISE = {
    "name": "letters, digits, `-` and `_`; unique within its application. Default: from the class",
    "resources": "resources that one replica asks of the engine. Default: one CPU",
    "ray": "options that only the engine on Ray applies. Default: {}",
}
"""Options whose default is not a value."""
INGRESSES_ONLY = {"max_open_websockets"}


def shown(module: ModuleType, name: str) -> dict[str, str]:
    """By key of a TypedDict: the text below it."""
    (found,) = [
        each for each in ast.parse(getsource(module)).body if isinstance(each, ast.ClassDef) and each.name == name
    ]
    texts: dict[str, str] = {}
    for key, text in zip(found.body, found.body[1:], strict=False):
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(key.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            texts[key.target.id] = " ".join(str(text.value.value).split())
    return texts


@pytest.mark.parametrize(("module", "name", "model"), KEYWORDS, ids=[name for _, name, _ in KEYWORDS])
def test_a_keyword_has_the_text_and_the_default_of_its_option(module: ModuleType, name: str, model: Any) -> None:
    texts = shown(module, name)
    assert texts.keys() == getattr(module, name).__annotations__.keys() == model.model_fields.keys() - INGRESSES_ONLY
    for option, text in texts.items():
        field = model.model_fields[option]
        assert text == OTHERWISE.get(option, f"{description(model, option)}. Default: {field.default}"), option
