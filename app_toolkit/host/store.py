"""What the processes of an instance read from its store."""

import asyncio
import contextlib
import secrets
from hashlib import sha256

from app_toolkit.control.state_store import APPLICATIONS, EPOCH, HTTP, read_epoch
from app_toolkit.errors import Conflict, CorruptValue, TargetError
from app_toolkit.interfaces import Store, code_key

SECRET = "secret"
"""The key of the secret of the instance."""


def new_secret() -> bytes:
    """Return a new secret for callers and replicas: 256 bits, in characters that a header field can contain."""
    return secrets.token_urlsafe(32).encode()


async def create_secret(store: Store, *, discard: bool = False) -> bytes:
    """Return the secret of the instance. The first controller creates it, and later ones read it.

    `discard`: create another one if it cannot be read.
    """
    try:
        secret = await store.get(SECRET)
    except CorruptValue:
        if not discard:
            raise
        await store.delete(SECRET)
        secret = None
    if secret is None:
        with contextlib.suppress(Conflict):  # another controller created it at the same time
            await store.compare_and_set(SECRET, None, new_secret())
        secret = await store.get(SECRET)
    assert secret is not None
    return secret


async def is_left_over(store: Store) -> bool:
    """Return whether the store has no application, and values that cannot be read.

    An instance that was shut down leaves some. If the cluster has another access token since then, they have no use.
    """
    if await store.keys(APPLICATIONS):
        return False
    try:
        for key in (EPOCH, SECRET, HTTP):
            await store.get(key)
    except CorruptValue:
        return True
    return False


def packed(store: Store, hash: str) -> bytes | None:
    """Return what the store has under this hash, or None.

    The store keeps the code and files of an application until the application is deleted.
    """
    return asyncio.run(store.get(code_key(hash))) if hash else None


def packed_code(store: Store, hash: str) -> bytes | None:
    """Return pickled code from the store, or None. Raises `TargetError` if the code does not match its hash."""
    code = packed(store, hash)
    if code is not None and sha256(code).hexdigest() != hash:
        raise TargetError(
            f"the store's value of {code_key(hash)!r} does not match its hash: deploy the application again"
        )
    return code


def last_epoch(store: Store) -> int:
    """Return the epoch of the latest controller; 0 if the store has none."""
    return read_epoch(asyncio.run(store.get(EPOCH)))
