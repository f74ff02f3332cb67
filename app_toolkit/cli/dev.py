"""`dev`: one process, no Ray; the process is replaced when a file changes."""

from collections.abc import Sequence
from pathlib import Path

import uvicorn

from app_toolkit.cli.addresses import check_port_is_free
from app_toolkit.cli.target import Target, load
from app_toolkit.config.settings import say_development


def dev(target: Target, *, host: str, port: int, reload: bool, reload_dirs: Sequence[Path]) -> None:
    """Serve an app with uvicorn until a Ctrl-C.

    `reload_dirs`: where files are watched; none: in the current folder. Raises `ConfigError` where the port
    is taken, and `TargetError` where the app has to be looked for and is not there.
    """
    check_port_is_free(host, port)
    say_development()
    # With the object named, only the served process imports it: a mistake can be mended while that one waits.
    where = f"{target.module}:{target.attribute}" if target.attribute else load(target)[1]
    uvicorn.run(
        where,
        host=host,
        port=port,
        app_dir=str(target.app_dir),
        reload=reload,
        reload_dirs=[str(folder.resolve()) for folder in reload_dirs] or None,
        loop="app_toolkit.observability.watchdog:watched_loop",
    )
