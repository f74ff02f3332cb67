"""The resources that the replicas of this machine have reserved, and the replicas that wait for resources."""

import asyncio

from app_toolkit.engines.amounts import Lack
from app_toolkit.engines.processes import machine
from app_toolkit.engines.processes.capacity import Capacity, Grant, grant
from app_toolkit.interfaces import Resources


class Reservations:
    """Grants resources in the order in which replicas ask. One that asks for less does not wait for one with more."""

    def __init__(self, capacity: Capacity | None = None) -> None:
        """`capacity`: the resources of this machine; None: they are read when a replica asks for any."""
        self.lacks: dict[str, Lack] = {}
        """What the replicas that wait lack, by name."""
        self._capacity = capacity
        self._granted: dict[str, Grant] = {}
        self._freed = asyncio.Event()

    async def reserve(self, replica: str, resources: Resources) -> Grant:
        """Wait until the machine has what a replica asks for, and reserve it until `release`.

        Raises `ConfigError` if the resources that the environment states are invalid.
        """
        if replica in self._granted:
            return self._granted[replica]
        if self._capacity is None:
            self._capacity = await asyncio.to_thread(machine.capacity)
        while isinstance(outcome := grant(self._capacity, self._granted.values(), resources), Lack):
            self.lacks[replica] = outcome
            try:
                await self._freed.wait()
            finally:
                del self.lacks[replica]
        self._granted[replica] = outcome
        return outcome

    def adopt(self, replica: str, granted: Grant) -> None:
        """Note what a replica has reserved that an earlier controller started."""
        self._granted[replica] = granted

    def release(self, replica: str) -> None:
        """Free what a replica has reserved. Do nothing if it has reserved nothing."""
        if self._granted.pop(replica, None) is not None:
            self._freed.set()
            self._freed = asyncio.Event()
