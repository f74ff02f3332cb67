"""Cookiecutter finds this file beside cookiecutter.json. All templates have the same one."""

import runpy
from pathlib import Path

Shared = runpy.run_path(str(Path(__file__).resolve().parents[1] / "shared" / "extension.py"))["Shared"]
