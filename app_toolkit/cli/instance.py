"""What the command line needs of an engine, and how it reads the status that an engine reports."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.core.reconcile import PROXIES
from app_toolkit.core.rollout import Reverted
from app_toolkit.core.status import FAILED, HEALTHY, UPDATING, WAITING, Load
from app_toolkit.errors import ConfigError, InstanceEnded, PlacementError, StartupError, WaitTimeout

Status = Mapping[str, Any]
"""`core.status.InstanceStatus` as plain data."""

LOOK_S = 0.5
"""How long one wait for news of the instance lasts; a Ctrl-C is noticed as soon as it ends."""

SHOWN_NODE = 8
"""Characters of a node's id that tell it from others."""

SHOWN_LINES = 20
"""How much of a traceback is shown: its end, where the mistake is."""


class Instance(Protocol):
    """A running toolkit: one controller with its proxies and replicas."""

    def deploy(
        self,
        spec: ApplicationSpec,
        http: HTTPOptions | None,
        code: Mapping[str, bytes] | None = None,
        *,
        held: bool = True,
        expected: int | None = None,
    ) -> None:
        """Make the cluster serve an application; not `held`, it stays when this process has gone.

        Raises `RevisionConflict` where its revision number is not the `expected` one until then.
        """
        ...

    def wanted(self) -> tuple[Mapping[str, ApplicationSpec], HTTPOptions]:
        """The applications as they were applied last, by name; and how the proxies listen."""
        ...

    def scale(self, application: str, deployment: str, num_replicas: int) -> None:
        """Want so many replicas of a deployment. Raises `ConfigError` where that cannot be."""
        ...

    def rollback(self, application: str) -> Reverted:
        """Want its last good version other than the present one. Raises `ConfigError` where there is none."""
        ...

    def application(self, name: str) -> tuple[ApplicationSpec, int]:
        """The version that is to run, and its revision number. Raises `ConfigError` where there is none."""
        ...

    def delete(self, application: str, deployment: str | None = None) -> None:
        """Stop serving an application, or one deployment of it; it drains from then on.

        Raises `ConfigError` where there is none, or it is in use.
        """
        ...

    def progress(self, after: int, timeout_s: float) -> tuple[int, Status]:
        """The status and its number, as soon as that is above `after`; after `timeout_s` in any case."""
        ...

    def url(self) -> str: ...

    def status(self) -> Status: ...

    def load(self) -> Mapping[str, Load]:
        """Where requests are just now, by `APPLICATION/DEPLOYMENT`."""
        ...

    def leave(self) -> None:
        """Take back what was deployed here, and wait for it; all of it on a Ray of our own."""
        ...

    def shutdown(self) -> None:
        """Drain everything and wait for it; a Ray of our own is stopped, too."""
        ...

    def close(self) -> None:
        """Let go without stopping what runs."""
        ...


class Engine(Protocol):
    """Where instances come from."""

    def start(self, *, address: str | None, num_cpus: float | None, held: bool = True) -> Instance:
        """Join the Ray cluster at `address`; None: start a Ray of our own with so many logical CPUs.

        Where no instance runs there, one begins. Not `held`, it stays when this process has gone.
        """
        ...

    def find(self, address: str | None) -> Instance | None:
        """The instance that runs there. Raises `ConfigError` where there is no cluster."""
        ...

    def connect(self, address: str | None) -> Instance:
        """The instance that runs there. Raises `ConfigError` where none does."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """One deployment, or the proxies, as people see them."""

    name: str
    status: str
    running: int
    target: int
    last_error: str = ""
    """A sentence, or a traceback whose last line is one; empty when there is nothing to say."""
    unplaceable: bool = False
    """The cluster has no room for one of its replicas."""
    is_proxy: bool = False
    restarts: int = 0

    @property
    def ready(self) -> bool:
        return self.running >= self.target

    @property
    def reason(self) -> str:
        """Why it is not as it should be, in one line."""
        lines = self.last_error.strip().splitlines()
        return lines[-1] if lines and self.status != HEALTHY else ""

    def __str__(self) -> str:
        count = f"{self.running} of {self.target} running"
        if self.restarts:
            count += f", {self.restarts} restart{'s' * (self.restarts > 1)}"
        return f"{self.name}: {self.status.replace('_', ' ')}, {count}" + (f" ({self.reason})" if self.reason else "")


def rows(status: Status, application: str) -> list[Row]:
    """The proxies and the deployments of one application; nothing while the engine does not know it."""
    return [row for row, _ in groups(status, application)]


def groups(status: Status, application: str) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    """The same, each with all that is known of it."""
    for each in status["applications"]:
        if each["name"] == application:
            proxies = status["proxies"]
            several = len(proxies) > 1
            for group in proxies:
                yield _row(group, _proxies(group["name"]) if several else "proxy", is_proxy=True), group
            for group in each["deployments"]:
                # A group of replicas is named APPLICATION/INGRESS.
                yield _row(group, group["name"].rpartition("/")[2]), group


def url_in(status: Status) -> str | None:
    """Where clients come in, `http://HOST:PORT` or https; None while no proxy is up."""
    for group in status["proxies"]:
        for proxy in group["replicas"]:
            if proxy["address"] is not None:
                kind, _, place = str(proxy["address"]).partition(":")
                return f"{'https' if kind == 'tls' else 'http'}://{place}"
    return None


def together(found: Mapping[str, list[Row]]) -> list[Row]:
    """The rows of several applications: the proxies, which they share, once, and deployments by both names."""
    if len(found) == 1:
        return next(iter(found.values()))
    proxies = [row for row in next(iter(found.values()), []) if row.is_proxy]
    return proxies + [
        replace(row, name=f"{application}/{row.name}")
        for application, each in found.items()
        for row in each
        if not row.is_proxy
    ]


def _proxies(group: str) -> str:
    """`proxy@NODE`, with the beginning of the node's id, as Ray's own tools show it."""
    return group[: len(PROXIES) + SHOWN_NODE]


def _row(group: Mapping[str, Any], name: str, *, is_proxy: bool = False) -> Row:
    short = [replica for replica in group["replicas"] if replica["asks"]]
    waits = f"one replica asks for {short[0]['asks']}; {short[0]['free']} is free" if short else ""
    return Row(
        name=name,
        status=group["status"],
        running=group["counts"].get("running", 0),
        target=group["target"],
        last_error=waits if group["status"] == WAITING else group["last_error"] or "",
        unplaceable=bool(short),
        is_proxy=is_proxy,
        restarts=group["restarts"],
    )


def is_serving(found: list[Row], status: Status) -> bool:
    """Whether all that was deployed last of an application is up, and can be reached."""
    return bool(found and status["proxies"]) and all(row.ready and row.status != UPDATING for row in found)


def until_serving(
    instance: Instance,
    applications: Collection[str],
    timeout_s: float = math.inf,
    show: Callable[[list[Row]], None] = lambda rows: None,
) -> None:
    """Wait until all that was deployed last of these is up, and nothing of before answers any more.

    Raises what `hopeless` says, and `WaitTimeout`; what was deployed is not taken back then.
    """
    deadline, after = time.monotonic() + timeout_s, 0
    while True:
        after, status = instance.progress(after, LOOK_S)
        found = {name: rows(status, name) for name in applications}
        show(together(found))
        for name, each in found.items():
            if error := rolled_back(status, name) or hopeless(each):
                raise error
        left = [group for name in applications for group in leaving(status, name)]
        left += [each for each in status["applications"] if each["name"] in found and each["status"] == UPDATING]
        if not left and all(is_serving(each, status) for each in found.values()):
            return
        if time.monotonic() >= deadline:
            late = [str(row) for row in together(found) if not row.ready or row.status == UPDATING]
            late += [f"{group['name']}: {group['status']}" for group in left]
            raise WaitTimeout(
                f"not all is as it should be after {timeout_s:g} s: {'; '.join(late) or 'no proxy is up'}"
            )


def rolled_back(status: Status, application: str) -> StartupError | None:
    """Why what was deployed last of an application was given up for what was there before; None: it was not."""
    for each in status["applications"]:
        if each["name"] == application and each["last_error"] and each["revision"]:
            return _with_traceback(_rolled_back(each), each["last_error"])
    return None


def _rolled_back(application: Mapping[str, Any]) -> str:
    if not application["serving_revision"]:
        return f"{application['name']!r} was rolled back"
    serving = f"revision {application['serving_revision']} keeps serving"
    return f"revision {application['revision']} of {application['name']!r} was rolled back, {serving}"


def leaving(status: Status, application: str) -> list[Mapping[str, Any]]:
    """The deployments that it had, and that are not gone yet."""
    return [group for group in status["leaving"] if group["name"].startswith(f"{application}/")]


def until_gone(instance: Instance, application: str, deployment: str | None = None) -> None:
    """Wait until nothing is left of what was deleted, an application or one deployment of it."""
    after = 0
    with suppress(InstanceEnded):
        while True:
            after, status = instance.progress(after, LOOK_S)
            left = [group["name"].partition("/")[2] for group in leaving(status, application)]
            if not left or deployment not in (None, *left):
                return


def deletion_named(name: str) -> tuple[str, str | None]:
    """What `APPLICATION` or `APPLICATION/DEPLOYMENT` names. Raises `ConfigError` where it is neither."""
    return deployment_named(name) if "/" in name else (name, None)


def deployment_named(name: str) -> tuple[str, str]:
    """The application and the deployment that `APPLICATION/DEPLOYMENT` names. Raises `ConfigError` where it is none."""
    application, _, deployment = name.partition("/")
    if not application or not deployment:
        raise ConfigError(f"{name!r} names no deployment: it should be APPLICATION/DEPLOYMENT")
    return application, deployment


def logical_cpus(asked: float) -> float:
    """What a Ray of our own has: as many as the plans ask for, since a replica books a share and does not fill it."""
    return max(math.ceil(asked), os.cpu_count() or 1)


def url_of(instance: Instance, spec: ApplicationSpec) -> str:
    """Where clients reach the application. Raises `ConfigError` while no proxy is up."""
    return instance.url().rstrip("/") + (spec.route_prefix or "").rstrip("/")


def hopeless(found: list[Row]) -> ConfigError | None:
    """Why an application will not come up by waiting; None while it still may."""
    for row in found:
        if row.status != FAILED:
            continue
        if row.unplaceable:
            return PlacementError(f"{row.name!r} cannot be placed: {row.reason}")
        return _with_traceback(f"{row.name!r} did not come up", row.last_error)
    return None


def _with_traceback(what: str, why: str) -> StartupError:
    """Its last line in the sentence, and where there are more, the last of them below it."""
    lines = why.strip().splitlines()
    error = StartupError(f"{what}: {lines[-1] if lines else ''}")
    if len(lines) > 1:
        error.add_note("\n".join(lines[-SHOWN_LINES:]))
    return error
