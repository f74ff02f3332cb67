"""A running toolkit, seen from a process outside it: the command line, a script, a test."""

import logging
import math
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app_toolkit.config import settings
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.core.rollout import Reverted
from app_toolkit.core.status import InstanceStatus, Load
from app_toolkit.engines.ray import cluster
from app_toolkit.engines.ray.actors import CONTROLLER, NAMESPACE, SILENT_S, revive
from app_toolkit.engines.ray.controller import ControllerActor
from app_toolkit.engines.ray.local import LocalRay
from app_toolkit.engines.ray.runtime import check_runtime_folder
from app_toolkit.engines.ray.token import make_token, restrict_token
from app_toolkit.errors import ConfigError, InstanceEnded, StaleEpoch, ToolkitError
from app_toolkit.types import Kind, ReplicaId

LEASE_EVERY_S = 5.0
"""How often whoever keeps an instance in the foreground says so; unheard for thirty seconds, it is put away."""

BACK_S = 60.0
"""How long a controller that died may take to come back."""

ASK_AGAIN_S = 0.2

LOOK_S = 2.0
"""How long whoever looks at the load waits for the processes that it is in."""


class Instance:
    """One controller with its proxies and replicas.

    * `start` and `connect` make this process a driver of the cluster; `close` or the end of a `with` ends that.
    * What was deployed here goes once this process is gone or has not renewed its lease for 30 s.
    * A Ray of our own ends with the instance; a cluster that was joined stays as it was, without us.
    """

    def __init__(self, controller: Any, local: LocalRay | None = None, *, joined: bool = True) -> None:
        """`joined`: this made the process a driver, and ends that."""
        self._controller = controller
        self._local = local
        self._joined = joined
        #: Under which name the lease is held; None: this process only looks on.
        self._owner: str | None = None
        self._holder: threading.Thread | None = None
        self._let_go = threading.Event()

    @classmethod
    def start(cls, *, address: str | None = None, num_cpus: float | None = None, held: bool = True) -> Self:
        """Join the cluster at `address`, or start a Ray of our own with `num_cpus` logical CPUs, and hold it.

        In a process that is a driver already, its cluster is the one. Not `held`, its controller stays when this
        process has gone. Raises `ConfigError` where there is no cluster at the address, or Ray cannot be started.
        """
        local = None
        if address is None and not is_driver():
            local = _start_ray(num_cpus)
            address = local.address
        joined = False
        try:
            joined = _join(address, shows_output=held and local is None)
            # Beside whoever deploys, where that node lives: there the first proxy is, under the address that is told.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            controller = ControllerActor.options(
                name=CONTROLLER,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                scheduling_strategy=here,
            ).remote()
            instance = cls(controller, local, joined=joined)
            if held:
                instance.hold()
        except BaseException:
            if joined:
                ray.shutdown()
            if local is not None:
                local.close()
            raise
        return instance

    @classmethod
    def connect(cls, address: str | None = None) -> Self:
        """The instance that runs on the cluster at `address`, by default the one that this machine runs.

        In a process that is a part of a cluster already: the one that runs there. Raises `ConfigError` where there is
        none.
        """
        instance = cls.find(address)
        if instance is None:
            where = "of this machine" if address in (None, "auto") else f"at {address}"
            raise ConfigError(f"no app_toolkit instance runs on the Ray cluster {where}")
        return instance

    @classmethod
    def find(cls, address: str | None = None) -> Self | None:
        """The same; None where there is a cluster, and no instance. Raises `ConfigError` where there is no cluster."""
        joined = _join(address or "auto")
        try:
            return cls(ray.get_actor(CONTROLLER, namespace=NAMESPACE), joined=joined)
        except ValueError:
            if joined:
                ray.shutdown()
            return None

    def deploy(
        self,
        spec: ApplicationSpec,
        http: HTTPOptions | None,
        code: Mapping[str, bytes] | None = None,
        *,
        held: bool = True,
        expected: int | None = None,
    ) -> None:
        """Make the cluster serve this application; gives back as soon as that is written down.

        `http` None leaves the proxies as they are; `code`: what its replicas unpack, by its hashes. Not `held`, it
        stays when this process has gone. `expected`: the revision number that it must have until then; where it has
        another one, this raises `RevisionConflict`.
        """
        self._ask("apply", spec, http, self._owner if held else None, code, expected)

    def wanted(self) -> tuple[Mapping[str, ApplicationSpec], HTTPOptions]:
        """What was applied last under each name, with the values of all references; and how the proxies listen."""
        found: tuple[Mapping[str, ApplicationSpec], HTTPOptions] = self._ask("wanted")
        return found

    def scale(self, application: str, deployment: str, num_replicas: int) -> None:
        """Want so many replicas of a deployment; gives back as soon as that is written down.

        Raises `ConfigError` where there is no such deployment, or it cannot have so many.
        """
        self._ask("scale", application, deployment, num_replicas)

    def rollback(self, application: str) -> Reverted:
        """Want its last good version other than the present one; gives back as soon as that is written down.

        Raises `ConfigError` where there is none.
        """
        revision = next((each.revision for each in self.told().applications if each.name == application), None)
        reverted: Reverted = self._ask("rollback", application, revision)  # asked twice it would lead forward again
        return reverted

    def methods(self, application: str, deployment: str) -> Mapping[str, Kind]:
        """What callers may call of a deployment. Raises `ConfigError` where there is none of that name."""
        methods: Mapping[str, Kind] = self._ask("methods", application, deployment)
        return methods

    def forget(self, caller: str) -> None:
        """A caller of the board has gone."""
        with suppress(InstanceEnded, RayError):
            self._ask("forget", caller)

    def application(self, name: str) -> tuple[ApplicationSpec, int]:
        """The version that is to run, and its revision number. Raises `ConfigError` where there is none."""
        found: tuple[ApplicationSpec, int] = self._ask("application", name)
        return found

    def delete(self, application: str, deployment: str | None = None) -> None:
        """Stop serving an application, or one deployment of it; gives back as soon as that is written down.

        Raises `ConfigError` where there is none, or it is in use.
        """
        self._ask("delete", application, deployment)

    def status(self) -> Mapping[str, Any]:
        """The whole instance as plain data."""
        return asdict(self.told())

    def told(self) -> InstanceStatus:
        """The whole instance."""
        status: InstanceStatus = self._ask("status")
        return status

    def load(self) -> Mapping[str, Load]:
        """Where requests are just now, by `APPLICATION/DEPLOYMENT`; a process that does not answer is not counted."""
        status = self._ask("status")
        proxies = [replica.id for group in status.proxies for replica in group.replicas]
        groups = {
            group.name: [replica.id for replica in group.replicas]
            for application in status.applications
            for group in application.deployments
        }
        replicas = [replica for ids in groups.values() for replica in ids]
        found = _answers("statistics", [*proxies, *replicas])
        calling = _answers("calling", replicas)

        def load(name: str) -> Load:
            there = [found[id] for id in groups[name] if id in found]
            reached = {id: found[id].reached.get(name, "") for id in proxies if id in found}
            reached |= {id: called[name].reached for id, called in calling.items() if name in called}
            reached |= {id: ", ".join(found[id].reached) for id in groups[name] if id in found}
            return Load(
                proxies=sum(found[id].queues.get(name, 0) for id in proxies if id in found),
                handles=sum(called[name].waiting for called in calling.values() if name in called),
                ongoing=sum(each.ongoing for each in there),
                buffered=sum(each.buffered for each in there),
                streams=sum(each.streams for each in there),
                replicas={id: found[id].ongoing for id in groups[name] if id in found},
                reached={id: limits for id, limits in reached.items() if limits},
            )

        return {name: load(name) for name in groups}

    def progress(self, after: int, timeout_s: float) -> tuple[int, Mapping[str, Any]]:
        """Wait until the status is newer than number `after`, `timeout_s` at most; the status and its number."""
        number, status = self._ask("status_after", after, timeout_s)
        return number, asdict(status)

    def url(self) -> str:
        """Where clients come in: `http://host:port`, or https, on the controller's node where a proxy is up there.

        Raises `ConfigError` while no proxy is up.
        """
        for group in self.status()["proxies"]:
            for proxy in group["replicas"]:
                if proxy["address"] is not None:
                    kind, _, place = str(proxy["address"]).partition(":")
                    return f"{'https' if kind == 'tls' else 'http'}://{place}"
        raise ConfigError("no proxy of this instance is up")

    def leave(self) -> None:
        """Take back what was deployed here, and wait for it; whatever else the cluster serves goes on.

        A Ray of our own ends with all that runs on it.
        """
        if self._local is not None:
            self.shutdown()
            return
        self._release()
        if self._owner is not None:
            with suppress(InstanceEnded):  # it had nothing else to serve
                self._ask("leave", self._owner)
        self.close()

    def shutdown(self) -> None:
        """Drain everything, wait for it, and end the controller; a Ray of our own ends, too."""
        self._release()
        with suppress(InstanceEnded, RayError):  # having put everything away, it goes by itself
            self._ask("shutdown")
            ray.kill(self._controller, no_restart=True)
        self.close()

    def close(self) -> None:
        """Let go, without stopping what runs, unless it runs on a Ray of our own."""
        self._release()
        if self._joined:
            ray.shutdown()
        local, self._local = self._local, None
        if local is not None:
            local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def hold(self) -> None:
        """Take a lease, and renew it; nothing where there is one."""
        if self._owner is not None:
            return
        self._owner = uuid.uuid4().hex
        self._ask("hold", self._owner)
        self._holder = threading.Thread(target=self._keep_holding, name="app-toolkit lease", daemon=True)
        self._holder.start()

    def _keep_holding(self) -> None:
        while not self._let_go.wait(LEASE_EVERY_S):
            with suppress(RayError):  # a controller that comes back gives us our lease anew
                ray.get(self._controller.hold.remote(self._owner), timeout=LEASE_EVERY_S)

    def _release(self) -> None:
        self._let_go.set()
        if self._holder is not None:
            self._holder.join()
            self._holder = None

    def _ask(self, question: str, *arguments: Any) -> Any:
        """An answer of the controller's, also of one that is just being restarted: every question may be asked twice.

        An error of ours arrives as itself. Raises `InstanceEnded` where there is no controller any more.
        """
        deadline = math.inf
        while True:
            try:
                answer = getattr(self._controller, question).remote(*arguments)
                while not ray.wait([answer], timeout=SILENT_S)[0]:
                    revive(self._controller)
                return ray.get(answer)
            except RayTaskError as error:
                if not isinstance(error.cause, ToolkitError):
                    raise
                # One that has been replaced was asked, and makes room.
                if not isinstance(error.cause, StaleEpoch) or time.monotonic() > deadline:
                    raise error.cause from None
            except ActorDiedError:
                raise InstanceEnded("the instance was shut down") from None
            except ActorUnavailableError:
                if time.monotonic() > deadline:
                    raise
            deadline = min(deadline, time.monotonic() + BACK_S)
            time.sleep(ASK_AGAIN_S)


def _answers(question: str, processes: Sequence[ReplicaId]) -> dict[ReplicaId, Any]:
    """What these say to a question that takes them no time, within `LOOK_S`; who says nothing is left out."""
    asked = {}
    for process in processes:
        with suppress(ValueError):  # it has gone
            actor: Any = ray.get_actor(process, namespace=NAMESPACE)
            asked[process] = getattr(actor, question).remote()
    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=LOOK_S) if asked else ([], [])
    answers = {}
    for process, answer in asked.items():
        if answer in ready:
            with suppress(RayError, ToolkitError):  # it has gone, or has not begun
                answers[process] = ray.get(answer)
    return answers


def is_driver() -> bool:
    """Whether this process is a part of a cluster already."""
    return bool(ray.is_initialized())


def _start_ray(num_cpus: float | None) -> LocalRay:
    check_runtime_folder()
    try:
        make_token()
    except OSError as error:
        raise ConfigError(f"Ray keeps its access token in ~/.ray, which cannot be written: {error}") from error
    _use_token()
    return LocalRay(num_cpus, settings.ray_folder())


def _use_token() -> None:
    """Show an access token to every cluster, if there is one.

    By itself Ray shows one only at the address `auto`.
    """
    restrict_token()
    logging.getLogger("ray").setLevel(logging.ERROR)
    maybe_enable_token_auth_if_token_available()


def _join(address: str | None, *, shows_output: bool = False) -> bool:
    """Make this process a driver; whether it was none before. `address` None: it is one.

    `shows_output`: what replicas write appears here.
    """
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            raise ConfigError(f"this process is a part of the Ray cluster at {here}, and cannot join one at {address}")
        return False
    assert address is not None
    address = cluster.find(address)
    _use_token()
    try:
        ray.init(address=address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=shows_output)
    except (ConnectionError, RuntimeError) as error:
        raise ConfigError(f"the Ray cluster at {address} cannot be joined: {error}") from error
    return True
