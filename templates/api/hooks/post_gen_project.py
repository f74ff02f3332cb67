"""Removes what was not asked for. Needs neither a network nor any program but Python."""

from pathlib import Path

if "{{ cookiecutter.license }}" == "none":
    Path("LICENSE").unlink()
