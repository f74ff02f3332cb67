"""Which values of options are secret, and options that are shown without them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.files import applied, applied_again, written
from app_toolkit.config.models import ApplicationSpec, ClassConfig, ClassSpec
from app_toolkit.config.secrets import MASK, is_secret_name, masked, secrets_in, unmasked
from app_toolkit.errors import ConfigError
from tests.core.specs import application

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
def test_masked_secrets_are_restored_where_they_were(config: dict[str, Any]) -> None:
    assert unmasked(masked(config), config) == config
    assert masked(masked(config)) == masked(config)


@given(TABLES)
def test_no_secret_is_shown_in_plain_text(config: dict[str, Any]) -> None:
    shown = masked(config)
    assert all(secret in ("", MASK) or "${" in secret for secret in secrets_in(shown))
    assert not any(secret in json.dumps(shown, ensure_ascii=False) for secret in SECRETS)


@given(TABLES.map(lambda config: {name: each for name, each in config.items() if not [*secrets_in({name: each})]}))
def test_what_is_not_secret_is_shown_and_can_be_three_asterisks(config: dict[str, Any]) -> None:
    assert masked(config) == config
    assert unmasked(config, {}) == config


def test_secrets_with_references_are_shown_as_written() -> None:
    config = {"token": "Bearer ${A}", "url": "redis://me:${A}@host", "api_key": "a$${b"}
    assert masked(config) == {**config, "api_key": MASK}


DEPLOYED = {
    "api_key": "hunter22",
    "url": "redis://me:hunter22@host",
    "stores": [{"name": "a", "token": "1"}, {"name": "b", "token": "2"}],
}


def test_other_options_change_beside_masked_secrets() -> None:
    assert unmasked({**masked(DEPLOYED), "model": "new", "api_key": "another"}, DEPLOYED) == {
        **DEPLOYED,
        "model": "new",
        "api_key": "another",
    }


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"new_api_key": MASK}, "new_api_key"),
        ({"url": "redis://me:***@other"}, "url"),
        ({"stores": [{"name": "b", "token": MASK}]}, "stores.0.token"),
        ({"api_key": {"inner": MASK}}, "api_key.inner"),
        ({"api_key": [MASK]}, "api_key.0"),
    ],
)
def test_error_names_the_place_of_a_secret_that_is_not_known(config: dict[str, Any], place: str) -> None:
    why = r"\*\*\* keeps a deployed secret only where .*: write the secret or a reference \$\{NAME\}"
    with pytest.raises(ValueError, match=f"^{place}: {why}$") as refused:
        unmasked(config, DEPLOYED)
    assert "hunter22" not in str(refused.value)


def deployed(user_config: dict[str, Any], environment: dict[str, str]) -> ApplicationSpec:
    """An application with the options of a file, as it was applied."""
    options = {"user_config": user_config, "resources": {"ray": {"runtime_env": {"env_vars": environment}}}}
    model = ClassSpec(config=ClassConfig(name="model", **options))
    return applied(application().model_copy(update={"deployments": (model,)}), VARIABLES)


@given(TABLES, st.dictionaries(st.sampled_from(["DB_PASSWORD", "URL"]), TEXTS | PLAIN))
def test_spec_that_is_shown_is_applied_again_with_its_secrets(
    config: dict[str, Any], environment: dict[str, str]
) -> None:
    spec = deployed(config, environment)
    assert applied_again(written(spec), spec) == spec
    as_in_code = spec.model_copy(
        update={"deployments": tuple(each.model_copy(update={"written": {}}) for each in spec.deployments)}
    )
    assert applied_again(written(as_in_code), as_in_code) == as_in_code


def test_spec_with_masked_secrets_is_refused_where_they_are_not_known() -> None:
    spec = deployed({"token": "hunter22"}, {"DB_PASSWORD": "hunter22"})
    for other, place in [
        (deployed({"token": "hunter22"}, {}), r"resources\.ray\.runtime_env\.env_vars\.DB_PASSWORD"),
        (deployed({}, {"DB_PASSWORD": "hunter22"}), r"user_config\.token"),
    ]:
        with pytest.raises(ConfigError, match=rf"^shop/model: {place}: \*\*\* keeps a deployed secret only"):
            applied_again(written(spec), other)
