"""Canaries: what we use of others that is not theirs to keep."""

import inspect

import pytest


def test_rays_scheduler_still_calls_implicit_resources_by_our_name() -> None:
    from ray._raylet import IMPLICIT_RESOURCE_PREFIX

    from app_toolkit.engines.ray.launcher import IMPLICIT

    assert IMPLICIT == IMPLICIT_RESOURCE_PREFIX


def test_the_key_value_functions_of_ray_accept_our_arguments() -> None:
    from ray.experimental import internal_kv

    assert list(inspect.signature(internal_kv._internal_kv_put).parameters) == [
        "key",
        "value",
        "overwrite",
        "namespace",
    ]
    for name in ("_internal_kv_get", "_internal_kv_del", "_internal_kv_list"):
        assert "namespace" in inspect.signature(getattr(internal_kv, name)).parameters


@pytest.mark.parametrize("most", range(1, 101))
def test_implicit_resources_of_a_node_are_limited(most: int) -> None:
    from app_toolkit.engines.ray.launcher import share

    parts = round(share(most) * 10_000)  # which is how Ray counts
    assert parts * most <= 10_000 < parts * (most + 1)


def test_ray_still_enables_token_authentication_when_it_is_asked_to() -> None:
    from ray._private.authentication import authentication_token_setup

    function = authentication_token_setup.maybe_enable_token_auth_if_token_available
    assert list(inspect.signature(function).parameters) == ["warn_if_disabled"]


def test_rays_workers_still_write_the_marks_that_we_read() -> None:
    from ray._private import ray_constants

    from app_toolkit.engines.ray.output import ACTOR, MARKS

    names = ray_constants.LOG_PREFIX_ACTOR_NAME, ray_constants.LOG_PREFIX_JOB_ID, ray_constants.LOG_PREFIX_TASK_NAME
    assert tuple(name.encode() for name in names) == MARKS
    assert MARKS[0] == ACTOR
