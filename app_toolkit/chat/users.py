"""Who a request belongs to: the user whose conversations it sees."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, HTTPException

from app_toolkit import ConfigError

DEFAULT_USER = "default"
"""The user of all chats if a router has no dependency that returns one."""


def user_parameter(user: Callable[..., Any] | None) -> Any:
    """Return the annotation of a route's parameter that is the id of the user. A request with an empty id gets 403."""
    if user is None:
        return Annotated[str, Depends(default_user)]

    async def checked(found: Annotated[Any, Depends(user)]) -> str:
        if not isinstance(found, str):
            raise ConfigError(f"the dependency `user` has returned {found!r}: it must return a string")
        if not found:  # for example an empty header: the client is at fault, and must not get the chats of others
            raise HTTPException(403, "the request names no user")
        return found

    return Annotated[str, Depends(checked)]


async def default_user() -> str:
    """Return the user of an application without users."""
    return DEFAULT_USER
