"""The client of an instance that an engine runs: commands go to the controller, and questions to the processes."""

import logging
import math
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from app_toolkit.contract.identity import ProxySetKey
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.control.command import Command
from app_toolkit.control.queries import GetStatus, Hold, Leave, Shutdown
from app_toolkit.control.replica_state import Phase
from app_toolkit.control.status import InstanceStatus, Load, ReplicaSetStatus
from app_toolkit.errors import CorruptValue, InstanceEnded, StaleEpoch, WaitTimeout
from app_toolkit.host.orders import (
    GetCallLoads,
    GetCallsOf,
    GetEdgeStatistics,
    GetSlowRequests,
    GetStatistics,
    Order,
    ReadLogs,
)
from app_toolkit.observability.log_query import MOST_RECORDS, LogPage, LogQuery, NodeLogs, page
from app_toolkit.observability.slowest import SlowRequest, slowest, with_calls
from app_toolkit.operate.client import Client

R = TypeVar("R")

logger = logging.getLogger("app_toolkit.client")

LEASE_EVERY_S = 5.0
"""Seconds between two renewals of a lease. A lease ends if it is not renewed for 30 s."""

BACK_S = 60.0
"""Seconds that a controller that ended may take to restart."""

RETRY_INTERVAL_S = 0.2
"""Seconds between two attempts to send a command to a controller that restarts."""


class ControllerUnavailable(Exception):
    """The controller has not answered a command, which it may have performed. It may answer again."""


class Control(Protocol):
    """The connection of a client to the controller and the processes of one instance. All methods may block."""

    def execute(self, command: Command[R], timeout_s: float | None = None) -> R:
        """Have the controller perform a command once, and return the result.

        `timeout_s`: the seconds to wait for the result; None: as long as it takes, while the controller lives.

        Raises:
            ToolkitError: The command has failed. `StaleEpoch`: another controller replaces the one that was asked.
            InstanceEnded: There is no controller any more.
            ControllerUnavailable: The controller was not reached, or has not answered in time.
        """
        ...

    def ask(self, orders: Mapping[str, Order[Any, R]]) -> Mapping[str, R]:
        """Give each process its order, all at once, and return the results that arrive within their `answer_s`.

        A process that has ended, that does not answer, or whose result is an error or None, has no result.
        """
        ...

    def addresses(self) -> Mapping[str, str]:
        """Return the address of each node. Nodes with the same address are on one host, and have the same files."""
        ...

    def links(self) -> Mapping[str, str]:
        """Return the addresses of other pages about the instance by name, as `Client.links` does."""
        ...

    def end_controller(self) -> None:
        """End the process of a controller that has shut the instance down."""
        ...

    def close(self) -> None:
        """Disconnect. A second call does nothing."""
        ...


class RemoteClient(Client):
    """A connection to one instance: a controller with its proxies and replicas.

    Applications that are deployed with the lease of this client are deleted once this process has ended, or has not
    renewed the lease for 30 s.
    """

    def __init__(self, control: Control, *, is_local: bool = False) -> None:
        """`is_local`: the instance ends with this client."""
        self.control = control
        self.is_local = is_local
        self._lease_thread: threading.Thread | None = None
        self._lease_released = threading.Event()

    def execute(self, command: Command[R]) -> R:
        """Have the controller perform a command, and return the result.

        If the controller restarts meanwhile, send the command again, so it may be performed twice. Raises the
        `ToolkitError` of the command, `InstanceEnded` if there is no controller any more, and `WaitTimeout` if the
        controller does not answer again within `BACK_S`.
        """
        deadline = math.inf
        while True:
            try:
                return self.control.execute(command)
            except StaleEpoch:  # the controller that was asked has been replaced, and its process ends
                if time.monotonic() > deadline:
                    raise
            except ControllerUnavailable as error:
                if time.monotonic() > deadline:
                    raise WaitTimeout(f"the controller has not answered for {BACK_S:g} s: {error}") from error
            command = command.repeated()
            deadline = min(deadline, time.monotonic() + BACK_S)
            time.sleep(RETRY_INTERVAL_S)

    # Questions to processes

    def load(self) -> Mapping[str, Load]:
        """Return what `Client.load` describes. Processes that do not answer are left out."""
        status = self.execute(GetStatus())
        proxies = _proxies(status)
        replica_sets = {replica_set.key.name: _started(replica_set) for replica_set in status.deployments}
        replicas = [replica for ids in replica_sets.values() for replica in ids]
        statistics = self._ask([*proxies, *replicas], GetStatistics())
        calling = self._ask(replicas, GetCallLoads())
        at_proxies = {id: statistics[id] for id in proxies if id in statistics}
        at_proxies |= self._ask([replica.id for replica in status.edges], GetEdgeStatistics())

        def load(key: str) -> Load:
            at_replicas = {id: statistics[id] for id in replica_sets[key] if id in statistics}
            calls = {id: loads[key] for id, loads in calling.items() if key in loads}
            reached = {id: proxy.reached.get(key, "") for id, proxy in at_proxies.items()}
            reached |= {id: load.reached for id, load in calls.items()}
            reached |= {id: ", ".join(replica.reached) for id, replica in at_replicas.items()}
            return Load(
                proxies=sum(proxy.queues.get(key, 0) for proxy in at_proxies.values()),
                handles=sum(load.waiting for load in calls.values()),
                ongoing=sum(replica.ongoing for replica in at_replicas.values()),
                buffered=sum(replica.buffered for replica in at_replicas.values()),
                streams=sum(replica.streams for replica in at_replicas.values()),
                replicas={id: replica.ongoing for id, replica in at_replicas.items()},
                reached={id: limits for id, limits in reached.items() if limits},
                mirrored=sum((proxy.mirrors.get(key, MirrorCounts()) for proxy in at_proxies.values()), MirrorCounts()),
                mirrored_calls=sum((load.mirrored for load in calls.values()), MirrorCounts()),
            )

        return {key: load(key) for key in replica_sets}

    def slow(self, name: str | None = None, last: int = 20) -> Sequence[SlowRequest]:
        """Return what `Client.slow` describes. Processes that do not answer are left out."""
        status = self.execute(GetStatus())
        replicas = [id for replica_set in status.deployments for id in _started(replica_set)]
        requests = slowest(_all(self._ask([*_proxies(status), *replicas], GetSlowRequests(name, last))), last)
        request_ids = {request.request_id for request in requests if request.kind != "call"}
        return with_calls(requests, _all(self._ask(replicas, GetCallsOf(request_ids))))

    def logs(
        self, query: LogQuery, last: int = MOST_RECORDS, after: Mapping[str, Mapping[str, str]] | None = None
    ) -> LogPage:
        """Return what `Client.logs` describes.

        One process of each host that accepts clients reads the files, or another one, if the first does not answer.
        """
        addresses = self.control.addresses()
        proxies: dict[str, list[str]] = {}  # by the address of their host
        status = self.execute(GetStatus())
        for replica_set in status.proxies:
            node = ProxySetKey.parse(replica_set.name).node
            proxies.setdefault(addresses.get(node, node), []).extend(replica.id for replica in replica_set.replicas)
        for replica in status.edges:
            assert replica.node is not None, "it accepts clients, so it has started"
            host = addresses.get(replica.node, replica.node)
            proxies.setdefault(host, []).append(replica.id)
        before = after or {}
        read: dict[str, NodeLogs] = {}
        for turn in range(max(map(len, proxies.values()), default=0)):
            left = {address: ids[turn] for address, ids in proxies.items() if address not in read and turn < len(ids)}
            positions = {address: None if after is None else before.get(address, {}) for address in left}
            answers = self.control.ask({id: ReadLogs(query, last, positions[address]) for address, id in left.items()})
            read |= {address: answers[id] for address, id in left.items() if id in answers}
        missing = sorted(address for address in proxies if address not in read)
        return page(read, last if after is None else None, missing, before)

    def _ask(self, processes: Iterable[str], order: Order[Any, R]) -> Mapping[str, R]:
        return self.control.ask(dict.fromkeys(processes, order))

    def links(self) -> Mapping[str, str]:
        return self.control.links()

    # The end

    def leave(self) -> None:
        if self.is_local:
            self.shutdown()
            return
        self._release_lease()
        if self.owner is not None:
            with suppress(InstanceEnded):  # the instance had no other applications
                self.execute(Leave(self.owner))
        self.close()

    def shutdown(self) -> None:
        self._release_lease()
        with suppress(InstanceEnded):  # the controller ends by itself after the drain
            try:
                self.execute(Shutdown())
            except CorruptValue as error:
                logger.warning("the instance is shut down without its desired state: %s", error)
                self.execute(Shutdown(discard=True))
            self.control.end_controller()
        self.close()

    def close(self) -> None:
        self._release_lease()
        self.control.close()

    # The lease

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
            with suppress(ControllerUnavailable, InstanceEnded, StaleEpoch):  # a restarted one accepts it again
                self.control.execute(Hold(self.owner), LEASE_EVERY_S)

    def _release_lease(self) -> None:
        self._lease_released.set()
        if self._lease_thread is not None:
            self._lease_thread.join()
            self._lease_thread = None


def _proxies(status: InstanceStatus) -> list[str]:
    return [replica.id for replica_set in status.proxies for replica in replica_set.replicas]


def _started(replica_set: ReplicaSetStatus) -> list[str]:
    """Return the replicas that can answer. A process that starts, or that has no room, would hold the answer up."""
    return [replica.id for replica in replica_set.replicas if replica.phase != Phase.STARTING.value]


def _all(answers: Mapping[str, Iterable[SlowRequest]]) -> list[SlowRequest]:
    return [request for requests in answers.values() for request in requests]
