"""The client of an instance on a Ray cluster, for processes outside the instance: the command line, scripts, tests."""

import logging
import math
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

import ray
from ray._private import services as ray_services
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from app_toolkit.client.client import Client
from app_toolkit.client.commands import Command, GetStatus, Hold, Leave, Shutdown
from app_toolkit.core.identity import ProcessSetKey
from app_toolkit.core.logs import MOST_RECORDS, LogPage, LogQuery, NodeLogs, page
from app_toolkit.core.replica_state import Phase
from app_toolkit.core.slow import SlowRequest, slowest, with_calls
from app_toolkit.core.status import InstanceStatus, Load, ReplicaSetStatus
from app_toolkit.core.traffic import MirrorCounts
from app_toolkit.engines.driver import LoopDriver
from app_toolkit.engines.ray import cluster
from app_toolkit.engines.ray.actors import CONTROLLER, NAMESPACE, SILENT_S, RayServices, revive
from app_toolkit.engines.ray.local import LocalRay
from app_toolkit.engines.ray.orders import send
from app_toolkit.engines.ray.token import restrict_token
from app_toolkit.errors import ConfigError, CorruptValue, InstanceEnded, StaleEpoch, ToolkitError
from app_toolkit.host.orders import GetCallLoads, GetCallsOf, GetSlowRequests, GetStatistics, Order, ReadLogs

R = TypeVar("R")

log = logging.getLogger("app_toolkit.ray")

LEASE_EVERY_S = 5.0
"""Seconds between two renewals of a lease. A lease ends if it is not renewed for 30 s."""

BACK_S = 60.0
"""Seconds that a controller that died may take to restart."""

RETRY_INTERVAL_S = 0.2
"""Seconds between two attempts to send a command to a controller that restarts."""


class RayClient(Client):
    """A connection to one instance: a controller with its proxies and replicas.

    * `start_instance`, `connect` and `find` make this process a driver of the cluster, until `close` or the end of a
      `with`.
    * Applications that are deployed with the lease of this client are deleted once this process has ended, or has not
      renewed the lease for 30 s.
    * A local Ray ends with the connection. A cluster that was joined is not changed.
    """

    def __init__(self, controller: Any, local: LocalRay | None = None, *, joined: bool = True) -> None:
        """`joined`: this client made the process a driver, so `close` disconnects it from Ray."""
        self._controller = controller
        self._local = local
        self.is_local = local is not None
        self._joined = joined
        self._lease_thread: threading.Thread | None = None
        self._lease_released = threading.Event()

    @classmethod
    def connect(cls, address: str | None = None) -> Self:
        """Connect to the instance on the cluster at `address`, by default that of this machine.

        If this process is connected to a cluster already, use that cluster. Raises `ConfigError` if there is no
        cluster or no instance.
        """
        client = cls.find(address)
        if client is None:
            where = "of this machine" if address in (None, "auto") else f"at {address}"
            raise ConfigError(f"no app_toolkit instance runs on the Ray cluster {where}")
        return client

    @classmethod
    def find(cls, address: str | None = None) -> Self | None:
        """Connect as `connect` does. Return None if there is no instance. Raises `ConfigError` without a cluster."""
        joined = join(address or "auto")
        try:
            return cls(ray.get_actor(CONTROLLER, namespace=NAMESPACE), joined=joined)
        except ValueError:
            if joined:
                ray.shutdown()
            return None

    def execute(self, command: Command[R]) -> R:
        """Have the controller perform a command, and return the result.

        If the controller restarts meanwhile, send the command again, so it may be performed twice. Raises the
        `ToolkitError` of the command, and `InstanceEnded` if there is no controller any more.
        """
        deadline = math.inf
        while True:
            try:
                reference = self._controller.execute.remote(command)
                while not ray.wait([reference], timeout=SILENT_S)[0]:
                    revive(self._controller)
                result: R = ray.get(reference)
                return result
            except RayTaskError as error:
                if not isinstance(error.cause, ToolkitError):
                    raise
                # `StaleEpoch`: the controller that was asked has been replaced, and its process ends.
                if not isinstance(error.cause, StaleEpoch) or time.monotonic() > deadline:
                    raise error.cause from None
            except ActorDiedError:
                raise InstanceEnded("the instance was shut down") from None
            except ActorUnavailableError:
                if time.monotonic() > deadline:
                    raise
            deadline = min(deadline, time.monotonic() + BACK_S)
            time.sleep(RETRY_INTERVAL_S)

    def load(self) -> Mapping[str, Load]:
        """Return where requests wait or run now, by `APPLICATION/DEPLOYMENT`, without processes that do not answer."""
        status = self.execute(GetStatus())
        proxies = _proxies(status)
        replica_sets = {
            replica_set.name: _started(replica_set)
            for application in status.applications
            for replica_set in application.deployments
        }
        replicas = [replica for ids in replica_sets.values() for replica in ids]
        found = _ask([*proxies, *replicas], GetStatistics())
        calling = _ask(replicas, GetCallLoads())

        def load(name: str) -> Load:
            there = [found[id] for id in replica_sets[name] if id in found]
            reached = {id: found[id].reached.get(name, "") for id in proxies if id in found}
            reached |= {id: called[name].reached for id, called in calling.items() if name in called}
            reached |= {id: ", ".join(found[id].reached) for id in replica_sets[name] if id in found}
            return Load(
                proxies=sum(found[id].queues.get(name, 0) for id in proxies if id in found),
                handles=sum(called[name].waiting for called in calling.values() if name in called),
                ongoing=sum(each.ongoing for each in there),
                buffered=sum(each.buffered for each in there),
                streams=sum(each.streams for each in there),
                replicas={id: found[id].ongoing for id in replica_sets[name] if id in found},
                reached={id: limits for id, limits in reached.items() if limits},
                mirrored=sum(
                    (found[id].mirrors.get(name, MirrorCounts()) for id in proxies if id in found), MirrorCounts()
                ),
                mirrored_calls=sum(
                    (called[name].mirrored for called in calling.values() if name in called), MirrorCounts()
                ),
            )

        return {name: load(name) for name in replica_sets}

    def logs(
        self, query: LogQuery, last: int = MOST_RECORDS, after: Mapping[str, Mapping[str, str]] | None = None
    ) -> LogPage:
        proxies = {ProcessSetKey.parse(each.name).node: each.replicas for each in self.execute(GetStatus()).proxies}
        nodes: Any = ray
        addresses: dict[str, str] = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes.nodes()}
        # Nodes with the same address are on the same host, and have the same files.
        asked: dict[str, list[str]] = {}
        for node, replicas in proxies.items():
            asked.setdefault(addresses.get(node, node), []).extend(each.id for each in replicas)
        before = after or {}
        found: dict[str, NodeLogs] = {}
        for turn in range(max(map(len, asked.values()), default=0)):  # another one, if the first does not answer
            left = {address: ids[turn] for address, ids in asked.items() if address not in found and turn < len(ids)}
            answers = _ask_each(
                {
                    id: ReadLogs(query, last, None if after is None else before.get(address, {}))
                    for address, id in left.items()
                }
            )
            found |= {address: answers[id] for address, id in left.items() if id in answers}
        missing = sorted(address for address in asked if address not in found)
        return page(found, last if after is None else None, missing, before)

    def links(self) -> Mapping[str, str]:
        services: Any = ray_services
        address = services.get_webui_url_from_internal_kv()  # None: Ray runs without its dashboard
        return {"Ray dashboard": f"http://{address}"} if address else {}

    def slow(self, name: str | None, last: int) -> Sequence[SlowRequest]:
        """As of `Client.slow`, without processes that do not answer."""
        status = self.execute(GetStatus())
        replicas = [
            id
            for application in status.applications
            for replica_set in application.deployments
            for id in _started(replica_set)
        ]
        asked = _ask([*_proxies(status), *replicas], GetSlowRequests(name, last))
        requests = slowest(_all(asked), last)
        made = _ask(replicas, GetCallsOf({each.request_id for each in requests if each.kind != "call"}))
        return with_calls(requests, _all(made))

    def leave(self) -> None:
        if self._local is not None:
            self.shutdown()
            return
        self._release_lease()
        if self.owner is not None:
            with suppress(InstanceEnded):  # the instance had no other applications
                self.execute(Leave(self.owner))
        self.close()

    def shutdown(self) -> None:
        self._release_lease()
        with suppress(InstanceEnded, RayError):  # the controller ends by itself after the drain
            try:
                self.execute(Shutdown())
            except CorruptValue as error:
                log.warning("the instance is shut down without its desired state: %s", error)
                self.execute(Shutdown(discard=True))
            ray.kill(self._controller, no_restart=True)
        self.close()

    def close(self) -> None:
        self._release_lease()
        if self._joined:
            ray.shutdown()
        local, self._local = self._local, None
        if local is not None:
            local.close()

    def acquire_lease(self) -> None:
        if self.owner is not None:
            return
        self.owner = uuid.uuid4().hex
        self.execute(Hold(self.owner))
        self._lease_thread = threading.Thread(target=self._renew_lease, name="app-toolkit lease", daemon=True)
        self._lease_thread.start()

    def _renew_lease(self) -> None:
        assert self.owner is not None
        while not self._lease_released.wait(LEASE_EVERY_S):
            with suppress(RayError):  # a restarted controller accepts the lease again
                ray.get(self._controller.execute.remote(Hold(self.owner)), timeout=LEASE_EVERY_S)

    def _release_lease(self) -> None:
        self._lease_released.set()
        if self._lease_thread is not None:
            self._lease_thread.join()
            self._lease_thread = None


class RayDriver(LoopDriver):
    def __init__(self, client: Client) -> None:
        super().__init__(client, RayServices())

    def _forget(self) -> None:
        with suppress(RayError):  # the controller ends
            super()._forget()


def _proxies(status: InstanceStatus) -> list[str]:
    return [replica.id for replica_set in status.proxies for replica in replica_set.replicas]


def _started(replica_set: ReplicaSetStatus) -> list[str]:
    """Return the replicas that can answer. A process that starts, or that has no room, would hold the answer up."""
    return [replica.id for replica in replica_set.replicas if replica.phase != Phase.STARTING.value]


def _all(found: Mapping[str, Iterable[SlowRequest]]) -> list[SlowRequest]:
    return [each for requests in found.values() for each in requests]


def _ask(processes: Iterable[str], order: Order[Any, R]) -> dict[str, R]:
    return _ask_each(dict.fromkeys(processes, order))


def _ask_each(orders: Mapping[str, Order[Any, R]]) -> dict[str, R]:
    """Give each process its order, and return the results that arrive in time, by process."""
    sent: dict[str, Any] = {}
    for process, order in orders.items():
        with suppress(ValueError):  # the process has ended
            sent[process] = send(ray.get_actor(process, namespace=NAMESPACE), order)
    timeout_s = max((order.answer_s or math.inf for order in orders.values()), default=0.0)
    ready, _ = ray.wait(list(sent.values()), num_returns=len(sent), timeout=timeout_s) if sent else ([], [])
    results = {}
    for process, reference in sent.items():
        if reference in ready:
            with suppress(RayError):  # the process has ended
                results[process] = ray.get(reference)
    return {process: result for process, result in results.items() if result is not None}


def is_driver() -> bool:
    """Return whether this process is connected to a cluster."""
    return bool(ray.is_initialized())


def use_token() -> None:
    """Make Ray send the access token, if there is one, to every cluster. By default Ray does so only for `auto`."""
    restrict_token()
    logging.getLogger("ray").setLevel(logging.ERROR)
    maybe_enable_token_auth_if_token_available()


def join(address: str | None, *, shows_output: bool = False, advice: str = cluster.ADVICE) -> bool:
    """Make this process a driver. Return False if it was one before. `address` None: it must be one already.

    `shows_output`: show the output of replicas here. `advice`: what to do if no cluster answers.
    """
    if address is not None:
        cluster.refuse_url(address)
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            raise ConfigError(f"this process is a part of the Ray cluster at {here}, and cannot join one at {address}")
        return False
    assert address is not None
    address = cluster.find(address, advice)
    use_token()
    try:
        ray.init(address=address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=shows_output)
    except (ConnectionError, RuntimeError) as error:
        raise ConfigError(f"the Ray cluster at {address} cannot be joined: {error}") from error
    return True
