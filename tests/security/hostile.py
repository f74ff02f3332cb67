"""Callers that meet a hostile peer, and what that peer sends."""

import asyncio
from pathlib import Path

import pytest

from app_toolkit.calls.remote import RemoteDataPlane
from app_toolkit.errors import QueueTimeout, ReplicaGone
from app_toolkit.interfaces import Call, Snapshot, Version
from app_toolkit.types import Address
from app_toolkit.wire.calls import encode_value
from app_toolkit.wire.pool import Pool, PooledConnection
from tests import published
from tests.keys import key
from tests.patience import PATIENCE_S


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def trapped(path: Path) -> bytes:
    """An answer to a call. Whoever unpickles its result makes the file `path`."""
    frame = b"".join(bytes(piece) for piece in encode_value(Trap(path)))
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(frame), frame)


async def turned_away(secret: bytes, address: Address) -> str:
    """Connect, and give the reason why the caller does not talk to what listens there."""
    pool = Pool(secret)
    pool.allow(address, 10)
    outcome: asyncio.Future[PooledConnection | ReplicaGone] = asyncio.get_running_loop().create_future()
    pool.dial(address, outcome.set_result, outcome.set_result)
    gone = await asyncio.wait_for(outcome, PATIENCE_S)
    assert isinstance(gone, ReplicaGone)
    assert pool.idle == 0
    await pool.aclose()
    return str(gone)


async def calls_in_vain(secret: bytes, address: Address) -> None:
    """Call what listens there as the replica of a model, until the call has waited too long."""
    callers = RemoteDataPlane(secret, "shop", ("model",))
    value = published.replica_set(published.replica("r", address, 2), max_queue_wait_s=0.3)
    callers.registry.update({"replicas/shop/model": Snapshot(Version(1, 1), value)})
    with pytest.raises(QueueTimeout):
        await callers.client_at(key("shop/model")).call(Call("double", ("mine",), {}))
    await callers.aclose()
