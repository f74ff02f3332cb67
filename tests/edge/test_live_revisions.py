"""Live revisions: the proxy chooses one of them for each request, by weight, by key, or by session."""

from collections.abc import Callable
from math import sqrt
from random import Random

import pytest

from app_toolkit.config.models import HTTPOptions
from tests import published
from tests.edge.test_sessions import BEGUN, HEADER, OK, ask, begin
from tests.edge.wire import Replica, Wire


@pytest.fixture
def proxies(new_wire: Callable[..., Wire]) -> list[Wire]:
    return [new_wire(), new_wire()]


def serve(
    proxies: list[Wire], shares: dict[str, float], *replies: bytes, affinity: str | None = None
) -> dict[str, Replica]:
    """One replica for each live revision."""
    replicas = {revision: proxies[-1].replica().says(*(replies or (OK,))) for revision in shares}
    for wire in proxies:
        weigh(wire, shares)
        wire.publish(
            {
                f"replicas/{revision}/web": published.replica_set(
                    published.replica(each.name, each.address), affinity=affinity
                )
                for revision, each in replicas.items()
            }
        )
    return replicas


def weigh(wire: Wire, shares: dict[str, float], **tags: str) -> None:
    """`tags`: the revisions by their tags."""
    named = {revision: tag for tag, revision in tags.items()}
    routed = [published.application(name, share=share, tag=named.get(name)) for name, share in shares.items()]
    wire.publish({"routes": published.routes(*routed)})


def counts(replicas: dict[str, Replica]) -> dict[str, int]:
    return {revision: len(each.received) for revision, each in replicas.items()}


def test_each_revision_gets_its_share_and_none_without_weight(proxies: list[Wire]) -> None:
    wire = proxies[-1]
    replicas = serve([wire], {"shop": 0.9, "shop@2": 0.1, "shop@3": 0.0})
    wire.proxy.draw = Random(1).random
    client = wire.client()
    for _ in range(1_000):
        ask(client)
    found = counts(replicas)
    assert found["shop@3"] == 0
    assert abs(found["shop@2"] - 100) < 3 * sqrt(1_000 * 0.9 * 0.1)


def test_a_change_of_the_weights_applies_to_the_next_request(proxies: list[Wire]) -> None:
    wire = proxies[-1]
    replicas = serve([wire], {"shop": 1.0, "shop@2": 0.0})
    client = wire.client()
    ask(client)
    weigh(wire, {"shop": 0.0, "shop@2": 1.0})
    ask(client)
    assert counts(replicas) == {"shop": 1, "shop@2": 1}
    weigh(wire, {"shop": 1.0})
    ask(client)
    assert counts(replicas) == {"shop": 2, "shop@2": 1}


@pytest.mark.parametrize(("affinity", "field"), [(None, "x-serve-shard-key"), ("header:x-user", "x-user")])
def test_a_key_selects_the_same_revision_at_each_proxy(proxies: list[Wire], affinity: str | None, field: str) -> None:
    replicas = serve(proxies, {"shop": 0.5, "shop@2": 0.5}, affinity=affinity)
    where = []
    for user in range(20):
        before = counts(replicas)
        for wire in proxies:
            for _ in range(2):
                ask(wire.client(), f"{field}: {user}")
        (revision,) = [name for name, count in counts(replicas).items() if count != before[name]]
        where.append(revision)
    assert set(where) == {"shop", "shop@2"}


def test_a_session_stays_at_its_revision_whatever_the_weights(proxies: list[Wire]) -> None:
    replicas = serve(proxies, {"shop": 0.5, "shop@2": 0.5}, BEGUN, affinity=HEADER)
    for wire in proxies:
        wire.proxy.draw = Random(1).random
    for _ in range(6):
        before = counts(replicas)
        session = begin(proxies[0].client())
        (home,) = [name for name, count in counts(replicas).items() if count != before[name]]
        for wire, share in zip(proxies, (0.01, 0.99), strict=True):
            weigh(wire, {"shop": share, "shop@2": 1 - share})
            ask(wire.client(), f"mcp-session-id: {session}")
            weigh(wire, {"shop": 0.5, "shop@2": 0.5})
        assert counts(replicas)[home] == before[home] + 3
    assert min(counts(replicas).values()) > 0


@pytest.mark.parametrize("other", [None, "header:mcp-session-id, cookie", "client"])
@pytest.mark.parametrize("main", ["shop", "shop@2"])
def test_a_session_is_found_although_the_revisions_have_other_options(
    proxies: list[Wire], main: str, other: str | None
) -> None:
    wire = proxies[-1]
    replicas = serve([wire], {"shop": 0.5, "shop@2": 0.5}, BEGUN)
    options = {"shop": other, "shop@2": other, main: HEADER}
    for revision, each in replicas.items():
        shown = published.replica_set(published.replica(each.name, each.address), affinity=options[revision])
        wire.publish({f"replicas/{revision}/web": shown})
    weigh(wire, {"shop": float(main == "shop"), "shop@2": float(main != "shop")})
    session = begin(wire.client())
    weigh(wire, {"shop": 0.5, "shop@2": 0.5})
    for _ in range(8):
        ask(wire.client(), f"mcp-session-id: {session}")
    assert len(replicas[main].received) == 9
    assert replicas[main].last.header(b"mcp-session-id") == b"one"


def test_a_key_keeps_its_revision_if_only_one_revision_reads_it(proxies: list[Wire]) -> None:
    wire = proxies[-1]
    replicas = serve([wire], {"shop": 0.5, "shop@2": 0.5})
    (one, _) = replicas.values()
    wire.publish(
        {"replicas/shop/web": published.replica_set(published.replica(one.name, one.address), affinity="header:x-user")}
    )
    for _ in range(20):
        ask(wire.client(), "x-user: ada")
    assert sorted(counts(replicas).values()) == [0, 20]


def test_a_session_leaves_a_revision_without_weight(proxies: list[Wire]) -> None:
    wire = proxies[-1]
    replicas = serve([wire], {"shop": 1.0, "shop@2": 0.0}, BEGUN, affinity=HEADER)
    session = begin(wire.client())
    weigh(wire, {"shop": 0.0, "shop@2": 1.0})
    ask(wire.client(), f"mcp-session-id: {session}")
    assert counts(replicas) == {"shop": 1, "shop@2": 1}


def test_a_session_whose_revision_is_gone_goes_to_another_one(proxies: list[Wire]) -> None:
    replicas = serve(proxies, {"shop": 0.0, "shop@2": 1.0}, BEGUN, affinity=HEADER)
    session = begin(proxies[0].client())
    weigh(proxies[0], {"shop": 1.0})
    proxies[0].publish({"replicas/shop@2/web": None})
    ask(proxies[0].client(), f"mcp-session-id: {session}")
    assert replicas["shop"].last.header(b"mcp-session-id") == b"one"
    assert proxies[0].records[-1].affinity == "gone"


@pytest.mark.parametrize(
    ("source", "field", "path"),
    [
        ("header:x-revision", "x-revision: preview", "/"),
        ("cookie:revision", "cookie: revision=preview", "/"),
        ("query:revision", "accept: */*", "/?revision=preview"),
    ],
)
def test_a_tag_selects_a_revision_without_weight(
    new_wire: Callable[..., Wire], source: str, field: str, path: str
) -> None:
    wire = new_wire(options=HTTPOptions(port=0, tag_source=source))
    replicas = serve([wire], {"shop": 1.0, "shop@2": 0.0})
    weigh(wire, {"shop": 1.0, "shop@2": 0.0}, preview="shop@2")
    client = wire.client()
    ask(client, field, path=path)
    ask(client)
    ask(client, field.replace("preview", "other"), path=path.replace("preview", "other"))
    assert counts(replicas) == {"shop": 2, "shop@2": 1}


def test_tags_select_nothing_by_default(proxies: list[Wire]) -> None:
    replicas = serve(proxies, {"shop": 1.0, "shop@2": 0.0})
    weigh(proxies[0], {"shop": 1.0, "shop@2": 0.0}, preview="shop@2")
    ask(proxies[0].client(), "x-revision: preview", "cookie: revision=preview", path="/?revision=preview")
    assert counts(replicas) == {"shop": 1, "shop@2": 0}
