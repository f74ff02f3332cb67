"""The checks detect an operation that is done by halves, and a revision that responds when it may not."""

import math

import pytest

from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, IngressSpec
from app_toolkit.control.status import ApplicationStatus, InstanceStatus, ReplicaSetStatus
from benchmarks.chaos.client import OK, Done
from benchmarks.chaos.operations import OPERATED, Calm, Outcome, Versions

SPEC = ApplicationSpec(
    name=OPERATED,
    target="shop:app",
    app_dir="/srv",
    deployments=(IngressSpec(config=DeploymentConfig(name="app")),),
    default="app",
)


def status(revision: int, restarted: int) -> InstanceStatus:
    """The status of the application in this revision, whose replicas this revision has restarted."""
    spec = SPEC.model_copy(update={"restarts": {"app": restarted} if restarted else {}})
    app = ReplicaSetStatus(f"{OPERATED}/app", "healthy", 1, spec.template_hash("app"), {}, (), 0, None)
    application = ApplicationStatus(OPERATED, "healthy", "/", (app,), revision, next_revision=revision + 1)
    return InstanceStatus(1, 1, "healthy", (application,), (), ())


@pytest.mark.parametrize(
    ("before", "after", "restarts"),
    [((3, 0), (4, 4), 1), ((3, 2), (4, 4), 1), ((3, 2), (5, 5), 2), ((3, 2), (4, 2), 0), ((3, 0), (3, 0), 0)],
)
def test_a_second_restart_is_detected(before: tuple[int, int], after: tuple[int, int], restarts: int) -> None:
    condition = Versions({"one": SPEC}).condition(status(*after), status(*before))
    assert (condition.main, condition.restarts) == ("one", restarts)


@pytest.mark.parametrize(
    ("error", "is_done", "is_untouched", "is_whole"),
    [
        ("", True, False, True),
        ("", False, True, False),
        ("", False, False, False),
        ("ConfigError: no", False, True, True),
        ("ConfigError: no", True, False, False),
        ("ConfigError: no", False, False, False),
    ],
)
def test_an_operation_is_done_or_refused(error: str, is_done: bool, is_untouched: bool, is_whole: bool) -> None:
    assert Outcome("update", error, is_done, is_untouched, math.inf).is_whole is is_whole


def test_only_the_expected_versions_may_respond_between_operations() -> None:
    calm = Calm([("update", 10.0, 11.0, frozenset(("one", "two")))])

    def done(at: float, version: str) -> Done:
        return Done("a", OK, at, at, at + 0.1, version=version)

    assert not calm.wrong([done(10.1, "one/one"), done(10.2, "two/two"), done(9.95, "three/three"), done(12, "three/")])
    assert calm.wrong([done(10.1, "three/three")]) == ["three/three instead of one or two after update"]
