"""Who may use the admin API: the token, and which addresses need one."""

import string
from ipaddress import ip_address

from app_toolkit.config import settings
from app_toolkit.errors import ConfigError

MIN_TOKEN = 16
"""The least number of characters of a token."""

_ALLOWED = frozenset(string.ascii_letters + string.digits + "-._~+/=")
"""The characters that RFC 6750 allows in a bearer token."""


def read_token() -> str | None:
    """Return the token of the admin API from the environment; None: there is none.

    Raises `ConfigError`, whose message does not show the token, if it is too short or no bearer token.
    """
    token = settings.admin_token()
    if token is None:
        return None
    if len(token) < MIN_TOKEN:
        raise ConfigError(
            f"{settings.ADMIN_TOKEN} has {len(token)} characters: it needs at least {MIN_TOKEN}, for example from "
            "`openssl rand -hex 32`"
        )
    if not _ALLOWED.issuperset(token):
        raise ConfigError(f"{settings.ADMIN_TOKEN} may only have letters, digits and - . _ ~ + / =")
    return token


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on this host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_exposure(host: str) -> None:
    """Raise `ConfigError` if other machines would reach the admin process on this host without a token."""
    if read_token() is None and not is_loopback(host):
        raise ConfigError(
            f"admin_host = {host!r}: other machines can reach the admin process there, so it needs a token in "
            f"{settings.ADMIN_TOKEN}"
        )
