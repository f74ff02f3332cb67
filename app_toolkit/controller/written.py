"""What outlives a controller: which keys of the store hold what."""

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.core.rollout import Rollout
from app_toolkit.errors import Conflict, StaleEpoch
from app_toolkit.interfaces import CODE, Store, code_key

NOTHING: Mapping[str, bytes] = {}

APPLICATIONS = "applications/"
"""Begins the key of an application's versions, and where it stands between them; what follows is its name."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the controller before this one has left."""

    rollouts: dict[str, Rollout] = field(default_factory=dict)
    """By the name of the application."""
    http: HTTPOptions | None = None
    port: int = 0
    """Where its proxies came to listen; 0: nowhere yet."""
    leases: dict[str, Any] = field(default_factory=dict)
    """As `Leases.plain` gave them."""


class Written:
    """The store as the controller of one epoch writes it.

    `replaced` is called when it turns out that another has taken a later epoch; the call that finds out raises
    `StaleEpoch`.
    """

    def __init__(self, store: Store, replaced: Callable[[], None]) -> None:
        self.epoch = 0
        self._store = store
        self._replaced = replaced

    async def take_epoch(self) -> int:
        """The next one: from now on every earlier controller is replaced."""
        while True:
            last = await self._store.get("epoch")
            epoch = int(last or 0) + 1
            with contextlib.suppress(Conflict):
                await self._store.compare_and_set("epoch", last, str(epoch).encode())
                self.epoch = epoch
                return epoch

    async def check_epoch(self) -> None:
        last = int(await self._store.get("epoch") or 0)
        if last > self.epoch:
            self._replaced()
            raise StaleEpoch(f"this controller has epoch {self.epoch}, and another has taken {last}")

    async def read(self) -> Kept:
        rollouts = {}
        for key in await self._store.keys(APPLICATIONS):
            kept = await self._store.get(key)
            if kept is not None:
                rollout = Rollout.model_validate_json(kept)
                rollouts[rollout.name] = rollout
        http, port, leases = [await self._store.get(key) for key in ("http", "port", "lease")]
        return Kept(
            rollouts,
            None if http is None else HTTPOptions.model_validate_json(http),
            0 if port is None else int(port),
            {} if leases is None else json.loads(leases),
        )

    async def keep_application(self, rollout: Rollout, code: Mapping[str, bytes] = NOTHING) -> None:
        """`code`, by its hashes, first: whoever finds the application finds what its versions name."""
        for hash, packed in code.items():
            await self._write(code_key(hash), packed)
        await self._write(f"{APPLICATIONS}{rollout.name}", rollout.model_dump_json().encode())

    async def drop_application(self, name: str) -> None:
        await self._store.delete(f"{APPLICATIONS}{name}")

    async def drop_code_except_of(self, versions: Collection[ApplicationSpec]) -> None:
        """Of what was packed only that stays which a version names: a replica that is started later unpacks it."""
        named = {code_key(hash) for spec in versions for hash in spec.packed}
        for key in await self._store.keys(CODE):
            if key not in named:
                await self._store.delete(key)

    async def keep_http(self, options: HTTPOptions) -> None:
        await self._write("http", options.model_dump_json().encode())

    async def keep_port(self, port: int) -> None:
        await self._write("port", str(port).encode())

    async def keep_leases(self, plain: dict[str, Any]) -> None:
        await self._write("lease", json.dumps(plain).encode())

    async def drop_all(self) -> None:
        """Forget what is wanted: a controller that comes back in the middle of putting away goes on with it."""
        for key in [*await self._store.keys(APPLICATIONS), *await self._store.keys(CODE), "lease", "port"]:
            await self._store.delete(key)

    async def _write(self, key: str, value: bytes) -> None:
        before = await self._store.get(key)
        if before != value:
            await self._store.compare_and_set(key, before, value)
