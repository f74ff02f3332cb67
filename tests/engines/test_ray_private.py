"""Canaries: what we use of others that is not theirs to keep."""

import inspect


def test_rays_key_value_functions_are_there_and_take_what_we_give() -> None:
    from ray.experimental import internal_kv

    assert list(inspect.signature(internal_kv._internal_kv_put).parameters) == [
        "key",
        "value",
        "overwrite",
        "namespace",
    ]
    for name in ("_internal_kv_get", "_internal_kv_del", "_internal_kv_list"):
        assert "namespace" in inspect.signature(getattr(internal_kv, name)).parameters
