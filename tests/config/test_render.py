"""A plan written as a file, and read back: the same specs, whatever the options are."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch
from app_toolkit.config.document import from_yaml
from app_toolkit.config.files import ConfigFile, applied, parse
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import InstanceOptions
from app_toolkit.config.render import render
from app_toolkit.declare.planning import plan
from app_toolkit.errors import ConfigError, OverrideError

FOLDER = Path("/srv/shop")

WORDS = st.sampled_from(
    ["no", "null", "1", "1e3", "a: b", "# a", "${A}", "$${", "- a", "'", '"', "\\", "~", "\x85", "é"]
)
TEXTS = WORDS | st.text(max_size=20)
FLOATS = st.floats(min_value=1e-6, max_value=3_600)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(TEXTS, JSON, max_size=3)

ACTOR = st.fixed_dictionaries(
    {},
    optional={
        "num_cpus": st.floats(0, 1024),
        "num_gpus": st.floats(0, 1) | st.integers(0, 64),
        "memory": st.none() | st.integers(min_value=1),
        "custom": st.dictionaries(TEXTS, st.floats(0, 10), max_size=2),
        "ray": st.fixed_dictionaries(
            {},
            optional={
                "runtime_env": st.none()
                | st.fixed_dictionaries(
                    {}, optional={"env_vars": st.dictionaries(TEXTS, TEXTS, max_size=3), "pip": JSON, "config": TABLES}
                ),
                "accelerator_type": st.none() | st.sampled_from(["H100", "A100-40G", "1.5"]),
            },
        ),
    },
)
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "num_replicas": st.integers(1, 1000),
    "max_ongoing_requests": st.integers(64, 100_000),
    "max_queued_requests": st.integers(0, 1_000_000),
    "max_queue_wait_s": FLOATS,
    "request_timeout_s": st.none() | FLOATS,
    "retry": st.sampled_from(["idempotent", "all", "none"]),
    "max_replicas_per_node": st.none() | st.integers(1, 100),
    "max_surge": st.integers(1, 1000) | st.sampled_from(["1%", "25%", "100%"]),
    "max_unavailable": st.integers(0, 1000) | st.sampled_from(["0%", "25%", "100%"]),
    "startup_timeout_s": FLOATS,
    "graceful_shutdown_timeout_s": FLOATS,
    "health_check_period_s": FLOATS,
    "health_check_timeout_s": FLOATS,
    "health_check_failure_threshold": st.integers(1, 1_000),
    "resources": ACTOR,
}
OF_INGRESS = st.fixed_dictionaries(
    {},
    optional=SHARED
    | {
        "max_body_size": st.none() | st.integers(min_value=0),
        "max_open_websockets": st.integers(0, 1_000_000),
        "on_disconnect": st.sampled_from(["auto", "cancel", "continue"]),
    },
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_batch_size": st.none() | st.integers(1, 16),
        "batch_wait_timeout_s": st.none() | FLOATS,
        "max_concurrent_batches": st.none() | st.integers(1, 4),
    },
)
OF_CLASS = st.fixed_dictionaries(
    {},
    optional=SHARED
    | {
        "sync_threads": st.integers(1, 64),
        "user_config": st.none() | TABLES,
        "batch": st.fixed_dictionaries({}, optional={"embed": LIMITS, "score": LIMITS}),
    },
)
INSTANCE = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(["::1", "0.0.0.0", "proxy.example"]),
        "port": st.integers(0, 65_535),
        "max_connections": st.none() | st.integers(1, 1_000_000),
        "keep_alive_timeout_s": FLOATS,
        "forwarded_allow_ips": st.sampled_from(["*", "10.0.0.0/8"]),
        "ssl_certfile": st.none() | st.sampled_from(["/tls/a b.pem"]),
        "access_log": st.booleans(),
        "address": st.none() | st.sampled_from(["auto", "head:6379"]),
    },
)


class Writer(Deployment):
    @batch(max_batch_size=16, batch_wait_timeout_s=0.01)
    async def embed(self, texts: list[str]) -> list[str]:
        return texts

    @batch(max_batch_size=4)
    async def score(self, texts: list[str]) -> list[str]:
        return texts

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        pass


def app(ingress: dict[str, Any], of_class: dict[str, Any]) -> Toolkit:
    """With an ingress, a class and these options of theirs."""
    writer = Writer.options(**of_class).bind()
    app = Toolkit(deployment=DeploymentConfig(name="front", **ingress))

    @app.get("/")
    async def root(writer: Annotated[Writer, Depends(writer)]) -> None: ...

    return app


def planned(app: FastAPI, overrides: Any = None, **more: Any) -> ApplicationSpec:
    at: dict[str, Any] = {"name": "shop", "route_prefix": "/shop", "working_dir": str(FOLDER)} | more
    return plan(app, target="shop.web:app", app_dir=str(FOLDER / "src"), overrides=overrides, **at)


def read(text: str) -> ConfigFile:
    document = from_yaml(text, "app.yaml")
    return ConfigFile(document, FOLDER, *parse(document, FOLDER, InstanceOptions))


def replanned(app: FastAPI, file: ConfigFile, name: str = "shop") -> ApplicationSpec:
    """What the file makes of the app."""
    application = file.application(name)
    return plan(
        app,
        target=application.options.target,
        app_dir=application.app_dir,
        name=name,
        route_prefix=application.options.route_prefix,
        working_dir=application.working_dir,
        overrides=application.deployments,
    )


@given(OF_INGRESS, OF_CLASS, INSTANCE)
def test_a_plan_that_is_written_and_read_back_is_the_same(
    ingress: dict[str, Any], of_class: dict[str, Any], instance: dict[str, Any]
) -> None:
    spec = planned(app(ingress, of_class), overrides={})
    file = read(render([spec], InstanceOptions(**instance), FOLDER))
    assert replanned(app(ingress, of_class), file) == spec
    assert file.given == InstanceOptions(**instance).model_dump(exclude_unset=True)
    # It says all that is not as by default: the code does not have to.
    assert replanned(app({}, {}), file) == spec


@given(OF_INGRESS, OF_CLASS, OF_INGRESS, OF_CLASS)
def test_options_of_a_file_are_written_even_if_they_are_defaults(
    ingress: dict[str, Any], of_class: dict[str, Any], over_ingress: dict[str, Any], over_class: dict[str, Any]
) -> None:
    over_class = {name: value for name, value in over_class.items() if name not in ("user_config", "resources")}
    over_ingress.pop("resources", None)
    overrides = {"front": over_ingress, "writer": over_class}
    spec = planned(app(ingress, of_class), overrides)
    text = render([spec], InstanceOptions(), FOLDER, {"shop": overrides})
    assert replanned(app(ingress, of_class), read(text)) == spec
    fronts = spec.deployments[0].config
    assert {name: getattr(fronts, name) for name in over_ingress} == over_ingress


@given(OF_INGRESS, OF_CLASS)
def test_a_spec_as_written_is_applied_as_the_code_said_it(ingress: dict[str, Any], of_class: dict[str, Any]) -> None:
    assert applied(planned(app(ingress, of_class), overrides={}), {}) == planned(app(ingress, of_class))


def test_several_apps_are_written_into_one_file() -> None:
    apps = {
        "shop": app({"num_replicas": 2}, {"num_replicas": 3, "batch": {"embed": {"max_batch_size": 2}}}),
        "plain": FastAPI(title="Plain"),
        "bare": Toolkit(),
    }
    specs = [planned(each, {}, name=name, route_prefix=f"/{name}") for name, each in apps.items()]
    file = read(render(specs, InstanceOptions(), FOLDER))
    assert [replanned(apps[name], file, name) for name in file.applications] == specs
    assert [*file.applications] == [*apps]


def test_each_option_is_there_with_its_meaning_and_defaults_are_commented_out() -> None:
    text = render([planned(app({"num_replicas": 2}, {}), {})], InstanceOptions(port=80), FOLDER)
    lines = [line.strip() for line in text.splitlines()]
    assert "port: 80  # port of the proxies; 0: any free port" in lines
    assert '# host: "127.0.0.1"  # address of the proxies' in lines
    assert "num_replicas: 2  # number of replicas; auto: set by autoscaling" in lines
    assert "# num_replicas: 1  # number of replicas; auto: set by autoscaling" in lines
    assert "#   num_gpus: 0  # logical GPUs; fractions share one" in lines
    assert "app_dir: src  # the folder that is put first on the import path" in lines


def test_secrets_are_applied_and_never_shown() -> None:
    file = read(
        "applications:\n  shop:\n    target: 'shop:app'\n    deployments:\n      writer:\n"
        "        user_config: {token: 'Bearer ${TOKEN}', literal: '$${TOKEN}'}\n"
        "        resources: {ray: {runtime_env: {env_vars: {TOKEN: '${TOKEN}'}}}}\n"
    )
    spec = replanned(app({}, {}), file)
    secret = applied(spec, {"TOKEN": "s3cret"}).deployments[1].config
    assert secret.user_config == {"token": "Bearer s3cret", "literal": "${TOKEN}"}  # type: ignore[union-attr]
    assert secret.resources.ray.runtime_env == {"env_vars": {"TOKEN": "s3cret"}}
    assert "Bearer ${TOKEN}" in spec.model_dump_json()
    text = render([spec], InstanceOptions(), FOLDER)
    assert replanned(app({}, {}), read(text)) == spec
    assert read(text).variables == {"TOKEN"}


def test_defaults_follow_if_a_file_lowers_limits() -> None:
    assert planned(app({}, {})).deployments[1].config.max_ongoing_requests == 16
    more = planned(app({}, {}), {"writer": {"batch": {"embed": {"max_batch_size": 64}}}})
    assert more.deployments[1].config.max_ongoing_requests == 64


def test_options_that_do_not_fit_the_app_are_reported_with_lines() -> None:
    file = read(
        """\
applications:
  shop:
    target: shop:app
    deployments:
      front:
        sync_threads: 2
      absent: {}
      writer:
        on_disconnect: cancel
        batch:
          embedd: {max_batch_size: 2}
"""
    )
    with pytest.raises(OverrideError) as refused:
        replanned(app({}, {}), file)
    around = "applications.shop.deployments"
    assert str(file.locate("shop", refused.value)).splitlines() == [
        f"app.yaml:6: {around}.front: 'sync_threads' is an option of classes, and this is an ingress",
        f"app.yaml:7: {around}.absent: the app has no deployment 'absent', only front, writer",
        f"app.yaml:9: {around}.writer: 'on_disconnect' is an option of ingresses and of classes with __call__, "
        "and this class has none",
        f"app.yaml:11: {around}.writer: batch.embedd: it has no @batch method 'embedd', only embed, score",
    ]
    with pytest.raises(OverrideError, match="writer: class Writer: max_ongoing_requests = 3: its batches are full"):
        planned(app({}, {}), {"writer": {"max_ongoing_requests": 3}})
    with pytest.raises(ConfigError, match="its batches are full with"):
        planned(app({}, {"max_ongoing_requests": 20}), {"writer": {"batch": {"embed": {"max_batch_size": 64}}}})
