"""Refuses names that would not work, before a file is written."""

import keyword
import re
import sys
from pathlib import Path

NAME = {{ cookiecutter.project_name|tojson }}
SLUG = {{ cookiecutter.project_slug|tojson }}
PACKAGE = {{ cookiecutter.package_name|tojson }}
SOURCE = {{ cookiecutter.app_toolkit|tojson }}
REQUIREMENT = {{ cookiecutter.app_toolkit|requirement|tojson }}

DEPENDENCIES = {"app_toolkit", "fastapi", "httpx", "httpx2", "pydantic", "pytest", "ray", "starlette", "uvicorn"}


def mistake() -> "str | None":
    if not NAME.strip() or set('"\\\n') & set(NAME):
        return f"project_name {NAME!r} is empty, or holds a quote, a backslash or a line break"
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", SLUG):
        return f"project_slug {SLUG!r} is not made of 1 to 63 small letters, digits and inner dashes"
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", PACKAGE):
        return f"package_name {PACKAGE!r} is not a small letter followed by up to 62 small letters, digits and _"
    if keyword.iskeyword(PACKAGE) or PACKAGE in sys.stdlib_module_names:
        return f"package_name {PACKAGE!r} is a word or a module of Python itself"
    if PACKAGE in DEPENDENCIES | {"test", "tests"}:
        return f"package_name {PACKAGE!r} would hide another package of that name"
    if SOURCE == "index":
        return None
    if set('"\\ ') & set(REQUIREMENT.partition(" @ ")[2]):
        return f"app_toolkit {SOURCE!r} holds a quote, a backslash or a blank"
    if "://" not in SOURCE and not Path(SOURCE).expanduser().is_absolute():
        return f"app_toolkit {SOURCE!r} is not index, a URL such as git+https://..., or the whole path of a checkout"
    if "://" not in SOURCE and not (Path(SOURCE).expanduser() / "pyproject.toml").is_file():
        return f"app_toolkit {SOURCE!r} is no checkout: it has no pyproject.toml"
    return None


if said := mistake():
    sys.exit(f"Error: {said}.")
