"""The command `keys`, which changes a file of API keys. It needs no instance."""

from enum import StrEnum
from pathlib import Path

from app_toolkit.errors import ChatError, ConfigError


class Action(StrEnum):
    """What to do with a key."""

    CREATE = "create"
    LIST = "list"
    REVOKE = "revoke"


def changed_keys(action: Action, name: str | None, file: Path) -> list[str]:
    """Change a file of API keys. Return the lines to print: the new key, or the names of all keys.

    Raises:
        ConfigError: The file or the name is invalid, there is no such key, or one already.
    """
    from app_toolkit.chat import KeyFile  # the package imports FastAPI

    if (name is None) != (action is Action.LIST):
        raise ConfigError(f"keys {action}: {'name no key' if action is Action.LIST else 'name the key'}")
    keys = KeyFile(file)
    try:
        match action:
            case Action.CREATE:
                return [keys.create(str(name))]
            case Action.REVOKE:
                keys.revoke(str(name))
                return []
            case Action.LIST:
                keys.read()
                return list(keys.hashes())
    except ChatError as error:
        raise ConfigError(error.message) from None
