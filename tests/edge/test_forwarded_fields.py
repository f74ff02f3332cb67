"""Fields in which a proxy before ours tells of its client: taken from some, and from nobody else."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.edge.world import CALM, RunningProxy, World, on_both

FIELDS = (
    ("x-forwarded-for", "203.0.113.7:4711"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "shop.example"),
    ("x-forwarded-port", "443"),
    ("x-forwarded-prefix", "/shop"),
    ("forwarded", "for=203.0.113.7"),
)


@pytest.fixture
def believing(tmp_path: Path, put_away: Callable[[World], None]) -> Iterator[Callable[[str], World]]:
    """Worlds whose proxies believe these."""
    made: list[World] = []

    def believing(listed: str) -> World:
        made.append(World(RunningProxy(CALM, forwarded_allow_ips=listed), tmp_path))
        return made[-1]

    yield believing
    for world in made:
        put_away(world)


def get(*fields: tuple[str, str]) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in fields]
    return ("GET /seen HTTP/1.1\r\nhost: a\r\n" + "".join(lines) + "\r\n").encode("latin-1")


@on_both
def test_forwarded_fields_of_this_machine_are_trusted(world: World) -> None:
    world.one()
    with world.raw() as raw:
        seen = raw.send(get(*FIELDS)).answer().json()
        own = raw.send(get()).answer().json()
        assert (own["client"], own["scheme"]) == (list(raw.socket.getsockname()), "http")
    assert (seen["client"], seen["scheme"]) == (["203.0.113.7", 4711], "https")
    assert seen["headers"] == [["host", "a"], *map(list, FIELDS)]


def test_forwarded_fields_of_others_are_removed_in_every_spelling(believing: Callable[[str], World]) -> None:
    world = believing("10.0.0.0/8")
    world.one()
    with world.raw() as raw:
        others = [("x-forwarded-ssl", "on"), ("x-forwarded-scheme", "https"), ("x-real-ip", "6.6.6.6")]
        shown = [*FIELDS, *others]
        spelt = [(name.replace("-", "_"), value) for name, value in shown if "-" in name]
        kept = [("x-other", "1"), ("x-forwardedness", "2"), ("x-real-ipa", "3")]
        seen = raw.send(get(*shown, *spelt, ("X-Forwarded_For", "6.6.6.6"), *kept)).answer().json()
        assert (seen["client"], seen["scheme"]) == (list(raw.socket.getsockname()), "http")
    assert seen["headers"] == [["host", "a"], *map(list, kept)]


def test_a_proxy_can_trust_every_address(believing: Callable[[str], World]) -> None:
    world = believing("*")
    world.one()
    with world.raw() as raw:
        seen = raw.send(get(("X-Forwarded-For", "6.6.6.6, 203.0.113.7"))).answer().json()
    assert seen["client"] == ["6.6.6.6", 0]


@on_both
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-forwarded-for", ""),
        ("x-forwarded-for", ",,,"),
        ("x-forwarded-for", "127.0.0.1:" + "9" * 5_000),
        ("x-forwarded-for", "a b\tc"),
        ("x-forwarded-for", "[::1"),
        ("x-forwarded-for", "\xe9\xff"),
        ("x-forwarded-proto", "gopher"),
        ("x-forwarded-proto", "\xe9 https"),
        ("forwarded", "for=;;;"),
    ],
)
def test_invalid_forwarded_fields_are_ignored(world: World, name: str, value: str) -> None:
    world.one()
    with world.raw() as raw:
        got = raw.send(get((name, value))).answer()
        assert (got.status, got.json()["scheme"]) == (200, "http")
        assert raw.send(get()).answer().json()["client"] == list(raw.socket.getsockname())


@on_both
def test_each_request_of_a_connection_has_its_own_client(world: World) -> None:
    world.one()
    with world.raw() as raw:
        clients = [f"203.0.113.{i}" for i in range(5)]
        raw.send(b"".join(get(("x-forwarded-for", client)) for client in clients))
        assert [raw.answer().json()["client"] for _ in clients] == [[client, 0] for client in clients]
