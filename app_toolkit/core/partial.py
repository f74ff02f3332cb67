"""Changes a part of an application: selects the deployments to change, and computes the resulting application."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from app_toolkit.config.models import ApplicationSpec, DeploymentSpec, Route, SplitSpec
from app_toolkit.errors import ConfigError
from app_toolkit.types import Kind

T = TypeVar("T")


def named(names: Iterable[str], deployed: ApplicationSpec, plan: ApplicationSpec) -> frozenset[str]:
    """Return the deployments that `names` selects by their names or by endpoints such as `POST /embed` and `/chat`.

    An endpoint selects the ingress that serves it in the plan, or else in the running application. Raises `ConfigError`
    if neither has the name or endpoint, or if several ingresses serve the endpoint.
    """
    return frozenset(_named(name, deployed, plan) for name in names)


def taken_over(deployed: ApplicationSpec, plan: ApplicationSpec, names: Collection[str]) -> ApplicationSpec:
    """Return the running application with the deployments `names` as in the plan: created, updated or deleted.

    All other deployments keep their options and code.

    Raises:
        ConfigError: The code of a deployment would call a deployment or method that does not exist, the default
            deployment or all deployments would be deleted, or the plan has another route prefix, event loop or
            logging configuration or, with an ingress among `names`, another stream log that it names.
    """
    if plan.route_prefix not in (None, deployed.route_prefix):
        raise ConfigError(
            f"application {deployed.name!r} has the route prefix {deployed.route_prefix!r}: "
            f"a part of it cannot be deployed with {plan.route_prefix!r}"
        )
    has_ingress = any(each.kind == "ingress" and each.config.name in names for each in plan.deployments)
    if has_ingress and not plan.automatic_stream_log and plan.stream_log != deployed.stream_log:
        raise ConfigError(
            f"application {deployed.name!r} has the stream log {deployed.stream_log!r}: "
            f"a part of it cannot be deployed with {plan.stream_log!r}"
        )
    if plan.loop != deployed.loop:
        raise ConfigError(
            f"application {deployed.name!r} runs in the event loop {deployed.loop!r}: a part of it cannot be deployed "
            f"with {plan.loop!r}, so deploy the whole application to change it"
        )
    if plan.logging_config != deployed.logging_config:
        raise ConfigError(
            f"application {deployed.name!r} has another logging_config: all of its deployments have the same one, so "
            "deploy the whole application to change it"
        )
    deployments = _woven(
        [each for each in _with_origins(deployed) if each.config.name not in names],
        _with_origins(plan),
        lambda each: each.config.name,
        lambda each: each.config.name in names,
    )
    whole = plan if plan.default in names and deployed.default in names else deployed
    after = deployed.model_copy(
        update={
            "title": whole.title,
            "root_path": whole.root_path,
            "cors": whole.cors,
            "default": whole.default,
            "deployments": tuple(deployments),
            "routes": _routes(deployed, plan, deployments, names),
            "splits": _splits(deployed, plan, deployments, names),
        }
    )
    _check_rest(after)
    if mistakes := list(_mistakes(after, deployed, plan, names)):
        raise ConfigError("; ".join(mistakes))
    return _in_short(after)


def without(deployed: ApplicationSpec, deployment: str) -> ApplicationSpec:
    """Return the application without a deployment and its routes.

    Raises `ConfigError` if there is no such deployment, or if it cannot be deleted, as in `taken_over`.
    """
    deployed.deployment(deployment)
    others = tuple(each for each in deployed.deployments if each.config.name != deployment)
    return taken_over(deployed, deployed.model_copy(update={"deployments": others}), {deployment})


# Names


def _named(name: str, deployed: ApplicationSpec, plan: ApplicationSpec) -> str:
    there = list(dict.fromkeys(each.config.name for spec in (plan, deployed) for each in spec.deployments))
    if name in there:
        return name
    owners = _owners(name, plan) or _owners(name, deployed)
    if len(owners) == 1:
        return owners[0]
    if owners:
        raise ConfigError(f"{name!r} is served by {' and '.join(owners)}: add the method, or name the deployment")
    endpoints = dict.fromkeys(
        f"{','.join(route.methods or ())} {route.path}".strip()
        for spec in (plan, deployed)
        for route in spec.routes
        if route.owner is not None
    )
    kind, known = ("endpoint", endpoints) if "/" in name else ("deployment", there)
    raise ConfigError(
        f"application {deployed.name!r} has no {kind} {name!r}, neither in the running application nor in the plan; "
        f"there are {', '.join(known) or 'none'}"
    )


def _owners(endpoint: str, spec: ApplicationSpec) -> list[str]:
    method, _, path = endpoint.strip().rpartition(" ")
    method = method.strip().upper()
    found = dict.fromkeys(
        route.owner
        for route in spec.routes
        if route.path == path and (not method or route.methods is None or method in route.methods)
    )
    return [owner for owner in found if owner is not None]


# The resulting application


def _with_origins(spec: ApplicationSpec) -> list[DeploymentSpec]:
    """Return the deployments of an application, each with the origin of its code."""
    return [each.model_copy(update={"origin": each.origin or spec.origin}) for each in spec.deployments]


def _in_short(spec: ApplicationSpec) -> ApplicationSpec:
    """Return the application with the origin of the default deployment, or else of the first deployment.

    Deployments with the same origin then have none of their own.
    """
    name = spec.default or spec.deployments[0].config.name
    origin = spec.origin_of(name)
    deployments = tuple(
        each.model_copy(update={"origin": None if each.origin == origin else each.origin}) for each in spec.deployments
    )
    return spec.model_copy(update={**dict(origin), "deployments": deployments})


def _woven(
    staying: Iterable[T], planned: Iterable[T], key: Callable[[T], object], is_new: Callable[[T], bool]
) -> list[T]:
    """Merge the items that stay with the new items of the plan.

    Both keep their order. If an item that stays is before a new item in the plan, it is so in the result.
    """
    left = deque(staying)
    ahead = set(map(key, left))
    woven: list[T] = []
    for each in planned:
        if is_new(each):
            woven.append(each)
        while key(each) in ahead:
            woven.append(left.popleft())
            ahead.discard(key(woven[-1]))
    return [*woven, *left]


def _routes(
    deployed: ApplicationSpec, plan: ApplicationSpec, deployments: Sequence[DeploymentSpec], names: Collection[str]
) -> tuple[Route, ...]:
    """Return the routes that are served, followed by the other routes that the code of an ingress has, without owner.

    Otherwise a replica would answer 421 to requests for those, because its code assigns the route to another ingress.
    """
    ingresses = {each.config.name for each in deployments if each.kind == "ingress"}
    served = _woven(
        [route for route in deployed.routes if route.owner in ingresses - set(names)],
        [route for route in plan.routes if route.owner in ingresses],
        lambda route: route,
        lambda route: route.owner in names,
    )
    known = {(route.kind, route.pattern, route.methods) for route in served}
    codes = [spec for spec, run in ((deployed, ingresses - set(names)), (plan, ingresses & set(names))) if run]
    others = dict.fromkeys(
        route.model_copy(update={"owner": None})
        for spec in codes
        for route in spec.routes
        if (route.kind, route.pattern, route.methods) not in known
    )
    return (*served, *others)


def _splits(
    deployed: ApplicationSpec, plan: ApplicationSpec, deployments: Sequence[DeploymentSpec], names: Collection[str]
) -> tuple[SplitSpec, ...]:
    """Return the splits whose members all exist.

    A split is that of the plan if the plan has other members, or changes one of them. Any other one keeps its weights.
    """
    there = {each.config.name for each in deployments}
    found = {each.name: each for each in deployed.splits}
    for each in plan.splits:
        before = found.get(each.name)
        if before is None or before.shares.keys() != each.shares.keys() or each.shares.keys() & set(names):
            found[each.name] = each
    return tuple(each for each in found.values() if each.shares.keys() <= there)


def _check_rest(after: ApplicationSpec) -> None:
    """Raise `ConfigError` if no deployment or no default deployment would be left."""
    there = [each.config.name for each in after.deployments]
    if not there:
        raise ConfigError(f"nothing would be left of application {after.name!r}: delete all of it")
    if after.default is not None and after.default not in there:
        raise ConfigError(
            f"{after.default!r} cannot be deleted: it answers what no route of application {after.name!r} matches; "
            "delete all of it"
        )


def _mistakes(
    after: ApplicationSpec, deployed: ApplicationSpec, plan: ApplicationSpec, names: Collection[str]
) -> Iterator[str]:
    """Yield a sentence for each deployment or method that some code may call and that would be missing or different."""
    there = _methods(after)
    in_use: dict[str, list[str]] = {}
    for each in after.deployments:
        name, is_new = each.config.name, each.config.name in names
        expected = _methods(plan if is_new else deployed)
        for called in each.calls:
            if called not in there and is_new:
                yield f"{name!r} calls {called!r}, which application {after.name!r} does not have: name that, too"
            elif called not in there:
                in_use.setdefault(called, []).append(name)
            elif lost := expected[called].items() - there[called].items():
                methods = " and ".join(sorted(method for method, _ in lost))
                yield (
                    f"{name!r} may call {methods} of {called!r}, which would be missing or different: "
                    f"name {called if is_new else name!r}, too"
                )
    for called, callers in in_use.items():
        yield f"{called!r} cannot be deleted: it is called by {' and '.join(callers)}"


def _methods(spec: ApplicationSpec) -> dict[str, dict[str, Kind]]:
    """Return the methods of each class deployment, by the name of the deployment."""
    return {each.config.name: each.methods for each in spec.deployments if each.kind == "class"}
