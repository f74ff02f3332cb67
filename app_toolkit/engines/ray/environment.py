"""Ray's environment variables. Importing this module does not import Ray."""

import os
import string
import sys
from contextlib import suppress
from pathlib import Path


def set_plain_logs(colour: bool) -> None:
    """Make Ray forward every line that workers log, without colours unless `colour`. Call before importing Ray."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    if not colour:
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")


def set_up_workers() -> None:
    """Make a local Ray run its workers with normal priority, and end what a worker has started when its process ends.

    By default workers have a lower priority, and processes that a killed worker has started stay. Call before Ray is
    started. On a cluster that is joined, this has no effect.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_process_group_cleanup_enabled", "1")


def disable_auto_start() -> None:
    """Make user code that uses Ray without `ray.init()` fail, instead of starting a new cluster.

    An environment that sets another value is left alone.
    """
    hook = sys.modules.get("ray._private.auto_init_hook")
    is_disabled = os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0") == "0"
    if is_disabled and hook is not None:  # Ray was imported before, and has read the environment
        hook.enable_auto_connect = False  # type: ignore[attr-defined]


def decides_by_token() -> bool:
    """Return whether Ray is configured to use its own access token, and not no token or one of another kind."""
    return os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"


def token() -> str | None:
    """Return the access token that Ray sends to a cluster, from the first source that has one.

    As in Ray, it is the first line of the file, without ASCII white space around it.
    """
    if not decides_by_token():
        return None
    text = os.environ.get("RAY_AUTH_TOKEN", "")
    if not text:
        with suppress(OSError):
            path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or token_path())
            text = path.expanduser().read_text().partition("\n")[0]
    return text.strip(string.whitespace) or None


def cluster_token() -> str | None:
    """Return the access token of the cluster that this process is a part of; None: the cluster has none.

    Ray sets `RAY_AUTH_MODE` in each process of a cluster that has one.
    """
    return token() if "RAY_AUTH_MODE" in os.environ else None


def uses_tls() -> bool:
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def makes_token() -> bool:
    """Return whether Ray would create a missing token at `token_path`, because no other token is configured."""
    configured = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return decides_by_token() and not configured


def token_path() -> Path:
    """Return the default file of Ray's access token."""
    return Path.home() / ".ray" / "auth_token"


def folder() -> Path:
    """Return the folder for the files of a local Ray. It is /tmp by default, because socket paths must be short."""
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp")
