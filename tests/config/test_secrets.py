"""Which values of options are secret, and options that are shown without them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.files import applied, check_unmasked, written
from app_toolkit.config.models import ApplicationSpec, ClassConfig, ClassSpec
from app_toolkit.config.secrets import MASK, is_secret_name, masked, secrets_in
from app_toolkit.errors import ConfigError
from tests.control.specs import application

SECRETS = ["hunter22", "p@ss", "a$${b", "s\u00e9cret"]
VARIABLES = {"A": "of-a-variable", "B": "redis", "C": "p@{ss"}
TEXTS = st.sampled_from(
    [
        *(f"redis://me:{secret}@host/0" for secret in SECRETS),
        *("${B}://me:hunter22@host", "redis://${A}:${C}@host", "redis://me:hunter22@${A} redis://:${A}${C}@b"),
        *("Bearer ${A}", "$${A}", "http://host:80/a@b", "redis://me:***@host", "", MASK),
    ]
)
PLAIN = st.sampled_from(SECRETS)


def tables(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Tables whose names say that some values are secret."""
    secret = PLAIN | st.lists(PLAIN, max_size=2) | values
    return st.fixed_dictionaries(
        {}, optional={"api_key": secret, "DB_PASSWORD": secret, "model": values, "url": values, "***": values}
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | tables(inner),
    max_leaves=12,
)
TABLES = tables(VALUES)


@pytest.mark.parametrize(
    "name", ["TOKEN", "HF_TOKEN", "openai_api_key", "apiKey", "DB_PASSWORD", "db_pass", "client-secret"]
)
def test_name_says_that_its_value_is_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["key", "max_tokens", "eos_token", "model", "compass", "TOKENIZERS_PARALLELISM", "public_key", ""]
)
def test_name_says_nothing_about_its_value(name: str) -> None:
    assert not is_secret_name(name)


def test_secrets_are_found_in_tables_and_lists_and_urls() -> None:
    config = {"store": {"token": ["first-token", 3]}, "url": "redis://me:in-the-url@host/0", "model": "tiny-model"}
    assert list(secrets_in(config)) == ["first-token", "in-the-url"]


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("redis://:hunter22@host", "hunter22"),
        ("x://me:p@ss@w@host/a@b", "p@ss@w"),
        ("x://me:hunter22@host?mail=me@host", "hunter22"),
        ("x://me:p?#w@host", "p?#w"),
        ("${SCHEME}://me:hunter22@host", "hunter22"),
    ],
)
def test_password_in_a_url_ends_at_its_host(text: str, password: str) -> None:
    assert list(secrets_in(text)) == [password]
    assert masked(text) == text.replace(password, MASK)


@pytest.mark.parametrize("text", ["http://host:80/a@b", "mailto:me@host", "http://me@host", "a: b@c"])
def test_text_without_a_password_is_shown(text: str) -> None:
    assert list(secrets_in(text)) == []
    assert masked(text) == text


@given(TABLES)
def test_what_is_masked_twice_is_masked_once(config: dict[str, Any]) -> None:
    assert masked(masked(config)) == masked(config)


@given(TABLES)
def test_no_secret_is_shown_in_plain_text(config: dict[str, Any]) -> None:
    shown = masked(config)
    assert all(secret in ("", MASK) or "${" in secret for secret in secrets_in(shown))
    assert not any(secret in json.dumps(shown, ensure_ascii=False) for secret in SECRETS)


@given(TABLES.map(lambda config: {name: each for name, each in config.items() if not [*secrets_in({name: each})]}))
def test_what_is_not_secret_is_shown_and_can_be_three_asterisks(config: dict[str, Any]) -> None:
    assert masked(config) == config


def test_secrets_with_references_are_shown_as_written() -> None:
    config = {"token": "Bearer ${A}", "url": "redis://me:${A}@host", "api_key": "a$${b"}
    assert masked(config) == {**config, "api_key": MASK}


def deployed(user_config: dict[str, Any]) -> ApplicationSpec:
    model = ClassSpec(config=ClassConfig(name="model", user_config=user_config))
    return applied(application().model_copy(update={"deployments": (model,)}), {"A": "of-a-variable"})


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"api_key": "hunter22"}, "api_key"),
        ({"url": "redis://me:hunter22@other"}, "url"),
        ({"stores": [{"name": "b", "token": "hunter22"}]}, "stores.0.token"),
    ],
)
def test_a_spec_is_refused_as_it_is_shown_with_masked_secrets(config: dict[str, Any], place: str) -> None:
    why = rf"^shop/model: user_config\.{place}: \*\*\* is shown instead of a secret: write the secret or a reference"
    with pytest.raises(ConfigError, match=why):
        check_unmasked(written(deployed(config)))


def test_a_spec_without_masked_secrets_is_not_refused() -> None:
    spec = deployed({"api_key": "hunter22", "token": "Bearer ${A}", "greeting": MASK})
    check_unmasked(spec)
    assert written(spec).deployments[0].config.user_config == {  # type: ignore[union-attr]
        "api_key": MASK,
        "token": "Bearer ${A}",
        "greeting": MASK,
    }
