"""Who a request belongs to: the user whose conversations it sees."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, HTTPException
from starlette.requests import HTTPConnection

from app_toolkit import ConfigError
from app_toolkit.chat.keys import key_name

DEFAULT_USER = "default"
"""The user of a request without an API key if a router has no dependency that returns one."""


def user_parameter(user: Callable[..., Any] | None) -> Any:
    """Return the annotation of a route's parameter that is the id of the user. A request with an empty id gets 403.

    `user`: a dependency that returns the id. None: the name of the API key that `api_keys` has checked.
    """

    async def checked(found: Annotated[Any, Depends(user or key_owner)]) -> str:
        if not isinstance(found, str):
            raise ConfigError(f"the dependency `user` has returned {found!r}: it must return a string")
        if not found:  # for example an empty header: the client is at fault, and must not get the chats of others
            raise HTTPException(403, "the request names no user")
        return found

    return Annotated[str, Depends(checked)]


async def key_owner(connection: HTTPConnection) -> str:
    """Return the name of the API key of a request as its user."""
    return key_name(connection) or DEFAULT_USER
