"""`exchange.session_pins`: affinity keys of requests, and pins."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.exchange.session_pins import SEPARATOR, Pins, digest, from_cookies, from_query
from app_toolkit.types import ReplicaId
from tests.keys import key

REPLICAS = st.text("abc.-0123456789", min_size=1, max_size=20).map(ReplicaId)
IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40)
PINS = Pins(b"secret", key("shop/web"))


@given(value=st.text(min_size=1), before=st.dictionaries(st.text("abc", min_size=1), st.text(), max_size=3))
def test_a_parameter_of_a_query_is_found_whatever_precedes_it(value: str, before: dict[str, str]) -> None:
    pairs = [*before.items(), ("sid", value)]
    query = "&".join(f"{quote(name)}={quote(each, safe='', errors='replace')}" for name, each in pairs)
    assert from_query(query.encode(), "sid") == value
    assert from_query(query.encode(), "other") is None


def test_the_first_of_several_values_is_the_key() -> None:
    assert from_query(b"sid=a&sid=b", "sid") == "a"
    assert from_cookies(b"sid=a; sid=b", "sid") == "a"


@pytest.mark.parametrize(
    ("cookies", "value"),
    [(b"sid=a", "a"), (b"x=1; sid=a=b", "a=b"), (b'sid="a"', "a"), (b"sid=", None), (b"Sid=a", None), (b"sid", None)],
)
def test_a_cookie_is_found_by_its_name(cookies: bytes, value: str | None) -> None:
    assert from_cookies(cookies, "sid") == value


@given(id=IDS, replica=REPLICAS)
def test_a_pin_names_the_replica_and_leaves_the_id(id: str, replica: ReplicaId) -> None:
    assert PINS.split(PINS.attach(id, replica)) == (id, digest(replica))


@given(id=IDS, replica=REPLICAS)
def test_an_id_and_a_pin_of_another_ingress_or_instance_have_no_valid_pin(id: str, replica: ReplicaId) -> None:
    assert PINS.split(id) is None
    for others in (Pins(b"secret", key("shop/chat")), Pins(b"other", key("shop/web"))):
        assert PINS.split(others.attach(id, replica)) is None


@given(value=st.text())
def test_any_text_of_a_client_can_be_split(value: str) -> None:
    assert PINS.split(value) is None
    assert PINS.split(SEPARATOR + value) is None


def test_a_pin_does_not_contain_the_name_of_the_replica() -> None:
    assert "shop" not in PINS.pin(ReplicaId("shop.web-1-1"))
    assert len(PINS.pin(ReplicaId("shop.web-1-1"))) == 16
