"""Routes that create, list and revoke API keys."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field

from app_toolkit import ConfigError
from app_toolkit.chat.files_router import FileRoute
from app_toolkit.chat.keys import ApiKeys
from app_toolkit.chat.requests import RequestChecks, checked
from app_toolkit.streaming import without_permit


class KeyName(BaseModel):
    """What a client asks for."""

    name: str = Field(max_length=64)


class KeyEntry(BaseModel):
    """A key in a list."""

    name: str


class CreatedKey(KeyEntry):
    """A new key, which is not shown again."""

    key: str


def keys_router(keys: ApiKeys, *, admin: Callable[..., Any], origins: Sequence[str] = ()) -> APIRouter:
    """Return a router that changes the keys of a file. Include it with a prefix, such as `/admin/keys`.

    `GET` lists the names of the keys. `POST` with a `name` creates a key, and returns it with the status 201; only its
    hash is stored. `DELETE /{name}` revokes a key: it admits no further request, and responses that run go on. 404 and
    409 if there is no such key, or one already; 422 for an invalid name; 503 if the file cannot be written, or has an
    invalid entry.

    Parameters:
        keys: What `api_keys(file=...)` has returned.
        admin: A dependency that refuses other clients than administrators, such as `api_keys` with other keys.
        origins: Origins whose pages may change keys with cookies, as of `ai_sdk_router`. Default: none.

    Raises:
        ConfigError: The keys are not in a file, or `admin` are the same keys.
    """
    file = keys.file
    if file is None:
        raise ConfigError("keys_router: the keys are not in a file: pass what api_keys(file=...) returns")
    if admin is keys:
        raise ConfigError("keys_router: admin is keys, so that each client could create keys: pass other keys")
    checks = RequestChecks.of("keys_router", origins)
    router = APIRouter(route_class=checked(FileRoute, checks), dependencies=[Depends(admin)])

    @router.get("")
    @without_permit
    async def list_keys() -> list[KeyEntry]:
        return [KeyEntry(name=name) for name in file.hashes()]

    @router.post("", status_code=201)
    @without_permit
    async def create_key(asked: KeyName, response: Response) -> CreatedKey:
        response.headers["cache-control"] = "no-store"
        return CreatedKey(name=asked.name, key=await asyncio.to_thread(file.create, asked.name))

    @router.delete("/{name}", status_code=204)
    @without_permit
    async def revoke_key(name: Annotated[str, Field(max_length=64)]) -> None:
        await asyncio.to_thread(file.revoke, name)

    return router
