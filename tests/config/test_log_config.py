"""Mistakes in `logging_config` that are found before a replica starts."""

from typing import Any

import pytest

from app_toolkit import Toolkit
from app_toolkit.config.log_config import logging_config
from app_toolkit.errors import ConfigError
from tests.docs.pages import page

RIGHT: dict[str, Any] = {
    "version": 1,
    "formatters": {"short": {"format": "%(request_id)s %(message)s"}},
    "filters": {"named": {"name": "shop"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "short", "filters": ["named"], "level": "INFO"},
        "own": {"()": "shop.logs.Handler", "level": 5},
    },
    "loggers": {"shop": {"level": "DEBUG", "handlers": ["own"], "filters": ["named"], "propagate": False}},
    "root": {"level": "WARNING", "handlers": ["stderr"]},
}


def changed(section: str, **values: object) -> dict[str, Any]:
    return {**RIGHT, section: {**RIGHT[section], **values}}


@pytest.mark.parametrize("config", [RIGHT, {"version": 1}], ids=["all", "nothing"])
def test_a_configuration_without_mistakes_is_taken(config: dict[str, Any]) -> None:
    assert logging_config(config) == config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "its version should be 1, not None"),
        ({**RIGHT, "handler": {}}, "it has no key 'handler', only version, root, "),
        ({**RIGHT, "root": []}, "root should be a table, not []"),
        ({**RIGHT, "handlers": []}, "handlers should be a table, not []"),
        ({**RIGHT, "disable_existing_loggers": "no"}, "disable_existing_loggers = 'no': it should be true or false"),
        (changed("filters", named=1), "filters.named should be a table, not 1"),
        (changed("handlers", own={"level": "INFO"}), "handlers.own has no class"),
        (
            changed("handlers", own={"class": "a.B", "formatter": "long"}),
            "handlers.own names 'long', which is not",
        ),
        (
            changed("handlers", own={"()": "a.b", "filters": ["odd"]}),
            "handlers.own names 'odd', which is not",
        ),
        (changed("loggers", shop={"handlers": ["file"]}), "loggers.shop names 'file', which is not among the handlers"),
        (
            changed("loggers", shop={"handlers": "own"}),
            "loggers.shop has the handlers 'own', which should be",
        ),
        (
            changed("loggers", shop={"level": "LOUD"}),
            "loggers.shop has the level 'LOUD', and the levels are ",
        ),
        (changed("root", level=True), "root has the level True, and the levels are"),
        (changed("root", handlers=["file"]), "root names 'file', which is not among the handlers"),
        (changed("handlers", own={"()": print}), "it should only have values of JSON, and import paths instead of cla"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Toolkit(logging_config=config)
    assert str(refused.value).startswith(f"Toolkit(logging_config=...): {said}")


def test_the_configuration_of_the_page_is_taken() -> None:
    scope: dict[str, Any] = {}
    (code,) = [text for text in page("docs/observability.md").part("Logs").shown("python") if "logging_config" in text]
    exec(code, scope)
    assert isinstance(scope["app"], Toolkit)
