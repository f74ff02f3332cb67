"""The logs of one process of an instance: their level and format, their fields, and their file."""

import logging
from pathlib import Path

from app_toolkit.config import settings
from app_toolkit.config.secrets import is_secret_name
from app_toolkit.errors import InsecurePath
from app_toolkit.observability import logs
from app_toolkit.observability.context import ReplicaContext
from app_toolkit.observability.log_folder import LogFolder
from app_toolkit.observability.logs import attach_fields, handle_uvicorn_loggers, show_logs
from app_toolkit.observability.process_log import ProcessLog, current
from app_toolkit.observability.secrets import add_secrets
from app_toolkit.types import ReplicaId

logger = logging.getLogger("app_toolkit.logs")


def process_context(name: str) -> ReplicaContext:
    """Return the context of a process that is no replica: its records only have its name."""
    return ReplicaContext("", "", ReplicaId(name))


def begin_logs(
    folder: Path | None,
    context: ReplicaContext,
    file: str = "",
    *,
    user_code: bool = False,
) -> None:
    """Show the records of this process from now on, and write them to its log file.

    Call this once in a process, and again in a fork of it, which then has a log file of its own. A later call leaves
    the loggers of uvicorn alone, because the app may have changed them.

    Parameters:
        folder: The folder of the log file. None: the process has none.
        context: The replica, or that of `process_context`.
        file: The name of the log file; empty: the id of the replica.
        user_code: Whether the process runs user code. Its file then also gets what is written to standard output and
            standard error, and the loggers of uvicorn have handlers.
    """
    add_secrets(settings.values_of(is_secret_name))
    options = settings.start_options()
    show_logs(options.log_level, options.log_format)
    if user_code and logs.own_replica is None:
        handle_uvicorn_loggers(options.log_level, options.log_format)
    attach_fields(context)
    if folder is None:
        return
    try:
        kept = LogFolder(folder).create(file or context.replica_id)
    except (OSError, InsecurePath) as error:
        logger.warning("the log records of %s are not kept: %s", context.replica_id, error)
        return
    begun = current()
    if begun is None:
        ProcessLog(kept.write, options.log_level).begin(output=user_code)
    else:
        begun.write_to(kept.write)
