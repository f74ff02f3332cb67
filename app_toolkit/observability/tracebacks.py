"""Tracebacks that name the files of an application by their paths in its own folder."""

import os
from pathlib import Path

application_folder = ""


def shorten_paths(folder: Path) -> None:
    """Leave this folder out of tracebacks from now on. It is where this process has unpacked its application."""
    global application_folder
    application_folder = f"{folder}{os.sep}"


def shortened(traceback: str) -> str:
    """Return a traceback with the paths of the application's files relative to the folder of `shorten_paths`."""
    return traceback.replace(f'File "{application_folder}', 'File "') if application_folder else traceback
