"""Tracebacks that name the files of an application by their paths in its own folder."""

import os
from pathlib import Path

unpacked = ""
"""The folder of the application's files in this process, with a separator at its end; "": its paths are not changed."""


def shorten_paths(folder: Path) -> None:
    """Leave this folder out of tracebacks from now on. It is where this process has unpacked its application."""
    global unpacked
    unpacked = f"{folder}{os.sep}"


def shortened(traceback: str) -> str:
    """Return a traceback with the paths of the application's files relative to the folder of `shorten_paths`."""
    return traceback.replace(f'File "{unpacked}', 'File "') if unpacked else traceback
