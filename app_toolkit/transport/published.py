"""The published replica sets as a caller uses them."""

import os
from collections.abc import Mapping, Set
from typing import Any

from app_toolkit.interfaces import Endpoint
from app_toolkit.transport.pool import Pool
from app_toolkit.types import Address, NodeId


class Published:
    """The published replicas of each deployment. Keeps a pool up to date with them."""

    def __init__(self, pool: Pool, node: NodeId) -> None:
        self._pool = pool
        self._node = node
        self._sets: dict[str, set[Address]] = {}
        #: Deployments of which no replica starts, with the reason.
        self.failing: dict[str, str] = {}
        #: Deployments whose callers report their load.
        self.reported: set[str] = set()

    def take(self, name: str, value: Mapping[str, Any] | None) -> list[Endpoint]:
        """Apply the published value of a deployment, None if it was removed. Return the reachable replicas.

        Idle connections to removed replicas are closed.
        """
        before = self._sets.pop(name, set())
        self.reported.discard(name)
        self.failing.pop(name, None)
        endpoints: list[Endpoint] = []
        if value is not None:
            endpoints = [
                _endpoint(replica, address)
                for replica in value["replicas"]
                if (address := way(replica, self._node)) is not None
            ]
            self._sets[name] = {endpoint.address for endpoint in endpoints}
            if value.get("reported", False):
                self.reported.add(name)
            if (failed := value.get("cannot_start")) is not None:
                self.failing[name] = _why(name, failed)
            for endpoint in endpoints:
                self._pool.allow(endpoint.address, endpoint.max_ongoing_requests)
        for address in before - self._sets.get(name, set()):
            self._pool.forget(address)
        return endpoints

    @property
    def names(self) -> Set[str]:
        return self._sets.keys()


def _why(name: str, failed: Mapping[str, Any]) -> str:
    match failed:
        case {"why": "no_room"}:
            cause = "each one asks for more than any node of the cluster has; `app-toolkit status` shows the amount"
        case {"why": "held_back"}:
            cause = (
                "the last ones ended as soon as they served, and the next one starts within a minute; "
                "`app-toolkit status` shows the error"
            )
        case {"exception": str() as exception}:
            cause = f"each one that is started fails with {exception}; `app-toolkit status` shows the error"
        case _:
            cause = "each one that is started ends before it is ready; `app-toolkit status` shows the error"
    return f"no replica of {name} runs: {cause}"


def _endpoint(replica: Mapping[str, Any], address: Address) -> Endpoint:
    limits = replica["max_ongoing_requests"], replica.get("max_open_streams", 1_000)
    unresponsive = replica.get("unresponsive")
    if unresponsive is None:
        return Endpoint(replica["id"], address, *limits)
    running = unresponsive["running"]
    known = None if running is None else frozenset(running)
    return Endpoint(replica["id"], address, *limits, unresponsive=True, running=known)


def way(replica: Mapping[str, Any], node: NodeId) -> Address | None:
    """Return the address by which a caller on this node reaches a published replica. None: there is none.

    On the same node, this is the replica's Unix socket, unless its file is not accessible (another container or user).
    The name of the file contains the id of the replica, so no other replica listens there.
    """
    address, remote = Address(replica["address"]), replica.get("remote_address")
    if replica.get("node", "") != node:
        return remote
    if remote is None or not address.startswith("unix:") or os.access(address.removeprefix("unix:"), os.W_OK):
        return address
    return Address(remote)
