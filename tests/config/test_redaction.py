"""The secrets of a deployment, and texts without them."""

import json
import random

from hypothesis import example, given
from hypothesis import strategies as st

from app_toolkit.config.files import applied
from app_toolkit.config.models import ClassConfig, ClassSpec
from app_toolkit.config.redaction import SHORTEST, Redactor, redact_error, secrets_of
from app_toolkit.config.secrets import MASK
from tests.control.specs import application

SECRET = st.text(st.characters(exclude_characters="*"), min_size=SHORTEST).filter(lambda text: not text.isspace())
SECRETS = st.lists(SECRET, max_size=4)
"""A secret of asterisks would be found in the mask."""


@example(["00000\ud800"], [], random.Random(0))
@given(SECRETS, st.lists(st.text(st.characters(exclude_characters="*")), max_size=5), st.randoms())
def test_no_secret_is_left_wherever_it_is_in_a_text(secrets, around, random):
    parts = [*around, *secrets, *map(repr, secrets), *map(json.dumps, secrets)]
    random.shuffle(parts)
    found = Redactor(secrets).redact("*".join(parts))
    assert not [secret for secret in secrets if secret in found]


@example("of      spaces", ["      "])
@given(st.text(), st.lists(st.text(max_size=SHORTEST - 1)))
def test_text_without_secrets_does_not_change(text, short):
    assert Redactor(short).redact(text) == text
    assert Redactor().redact(text) == text


def test_longer_one_of_two_secrets_is_replaced_as_a_whole():
    assert Redactor(["abcdef", "abcdefgh"]).redact("=abcdefgh= abcdef") == f"={MASK}= {MASK}"


def test_values_of_references_are_the_secrets_of_a_deployment():
    options = {
        "resources": {"ray": {"runtime_env": {"env_vars": {"STAGE": "plain", "DB_PASSWORD": "by its name"}}}},
        "user_config": {"header": "Bearer ${VALUE} for $${ME}", "list": ["${OTHER}"]},
    }
    spec = application()
    model = ClassSpec(config=ClassConfig(name="model", **options))
    found = applied(spec.model_copy(update={"deployments": (model,)}), {"VALUE": "hunter2-", "OTHER": "two\nlines"})
    assert sorted(secrets_of(found.deployments[0])) == ["by its name", "hunter2-", "two\nlines"]


def test_texts_of_an_error_are_redacted():
    error = ValueError("the token is hunter2-", 7)
    error.add_note("hunter2- again")
    redact_error(error, Redactor(["hunter2-"]))
    assert error.args == (f"the token is {MASK}", 7)
    assert error.__notes__ == [f"{MASK} again"]
