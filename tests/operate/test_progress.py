"""The progress of applications that start."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.control.status import WORST_FIRST, ApplicationStatus, InstanceStatus, ReplicaSetStatus, ReplicaStatus
from app_toolkit.errors import ConfigError, PlacementError
from app_toolkit.operate.progress import failures, is_serving, rolled_back, rows, serving_at, unfinished, url_of
from tests.control.harness import application
from tests.operate.scripted import PROXY, UP

NAMES = ("blog", "chat", "shop")
LACKING = ReplicaStatus("r-1", "starting", 1.0, "r", None, 0, "1 GPU", "0 of 1 GPU")


def group(name: str, random: Random) -> ReplicaSetStatus:
    running = random.randrange(3)
    return ReplicaSetStatus(
        name=name,
        status=random.choice(WORST_FIRST),
        target=random.randrange(3),
        template_hash="r",
        counts={"running": running} if running else {},
        replicas=random.choice([(), (LACKING,)]),
        restarts=random.randrange(3),
        last_error=random.choice([None, "Traceback\n  line\nValueError: no model"]),
    )


def some(random: Random, names: Sequence[str]) -> list[str]:
    return [name for name in names if random.random() < 0.6]


def any_status(random: Random) -> InstanceStatus:
    applications = [
        ApplicationStatus(
            name, random.choice(WORST_FIRST), "/", (group(f"{name}/{name}", random), group(f"{name}/model", random))
        )
        for name in some(random, NAMES)
    ]
    proxies = [group(f"proxy@{letter * 56}", random) for letter in some(random, "ab")]
    leaving = [group(name, random) for name in some(random, ["chat/old", "shop/old", "shopping/old"])]
    return InstanceStatus(1, 1, "healthy", tuple(applications), tuple(proxies), tuple(leaving))


STATUSES = st.randoms(use_true_random=False).map(any_status)


@given(STATUSES, st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
def test_replica_sets_have_one_line_each_once_an_application_is_known(status: InstanceStatus, names: list[str]) -> None:
    known = [each for name in names if (each := status.application(name))]
    found = rows(status, names)
    assert len({row.name for row in found}) == len(found)
    expected = [*status.proxies, *(group for each in known for group in each.deployments)] if known else []
    assert [row.replica_set for row in found] == expected


@given(STATUSES, st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
def test_urls_of_several_applications_have_their_prefixes(status: InstanceStatus, names: list[str]) -> None:
    assert is_serving(status, names) == all(is_serving(status, [name]) for name in names)
    lines = [line for name in names for line in unfinished(status, {name: 1})]
    assert sorted(unfinished(status, dict.fromkeys(names, 1))) == sorted(lines)


@given(STATUSES, st.sampled_from(NAMES))
def test_nothing_is_hopeless_unless_it_has_failed(status: InstanceStatus, name: str) -> None:
    failed = [row for row in rows(status, [name]) if row.replica_set.status == "failed"]
    errors = list(failures(status, [name]))
    assert [isinstance(error, PlacementError) for error in errors] == [bool(row.replica_set.unplaced) for row in failed]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, "app: healthy, 1 of 1 running"),
        ({"restarts": 1}, "app: healthy, 1 of 1 running, 1 restart"),
        ({"restarts": 2, "last_error": "it died"}, "app: healthy, 1 of 1 running, 2 restarts"),
        ({"status": "failed", "last_error": "a\nb\n"}, "app: failed, 1 of 1 running (b)"),
        (
            {"status": "waiting_for_resources", "target": 2, "replicas": (LACKING,), "last_error": "it died"},
            "app: waiting for resources, 1 of 2 running (one replica asks for 1 GPU; the instance has 0 of 1 GPU free)",
        ),
    ],
)
def test_a_line_says_how_many_run_and_why_not_all(facts: dict[str, object], line: str) -> None:
    shop = ApplicationStatus("shop", "healthy", "/", (replace(UP, **facts),))
    status = InstanceStatus(1, 1, "healthy", (shop,), (PROXY,), ())
    assert [str(row) for row in rows(status, ["shop"])] == ["proxy: healthy, 1 of 1 running", line]


def test_only_a_failed_revision_counts_as_rolled_back() -> None:
    shop = ApplicationStatus("shop", "healthy", "/", (UP,))
    assert rolled_back(None) is None
    assert rolled_back(shop) is None
    assert rolled_back(replace(shop, last_error="nobody knows", revision=0)) is None
    assert str(rolled_back(replace(shop, last_error="it died", revision=3))) == "'shop' was rolled back: it died"


def test_an_application_is_reached_at_the_first_proxy_that_is_up() -> None:
    spec = application(prefix="/shop")
    status = InstanceStatus(1, 1, "healthy", (), (UP, PROXY), ())
    assert url_of(status, spec) == "http://127.0.0.1:8000/shop"
    assert list(serving_at(status, spec)) == ["Serving shop at http://127.0.0.1:8000/shop"]
    with pytest.raises(ConfigError, match="no process of this instance accepts clients"):
        url_of(replace(status, proxies=()), spec)
