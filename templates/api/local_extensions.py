"""Where the generated project installs app_toolkit from. Cookiecutter finds this file beside cookiecutter.json."""

import re
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from jinja2 import Environment
from jinja2.ext import Extension

CHECKOUT = Path(__file__).resolve().parents[2]
INDEX = "index"

SCP = re.compile(r"(?P<host>[^/:]+):(?P<path>.+)")
"""A remote that SSH reaches: `git@github.com:organization/repository.git`."""


def source() -> str:
    """The checkout that this template is a part of, or the URL that cookiecutter has cloned it from; else the index."""
    try:
        if 'name = "app-toolkit"' not in (CHECKOUT / "pyproject.toml").read_text("utf-8"):
            return INDEX
    except OSError:
        return INDEX
    if CHECKOUT.parent.name == ".cookiecutters":  # a clone that the next call of cookiecutter may remove
        git = ConfigParser(strict=False, interpolation=None)
        try:
            git.read(CHECKOUT / ".git" / "config", "utf-8")
            return installable(git['remote "origin"']["url"])
        except (Error, KeyError):
            return INDEX
    return str(CHECKOUT)


def installable(remote: str) -> str:
    """The URL that pip installs a Git remote from, without the credentials that it may have."""
    if "://" not in remote:
        if match := SCP.fullmatch(remote):
            return "git+ssh://{}/{}".format(match["host"], match["path"].lstrip("/"))
        return "git+" + Path(remote).absolute().as_uri()
    parts = urlsplit(remote)
    userinfo, _, host = parts.netloc.rpartition("@")
    user = userinfo.partition(":")[0]
    if user and parts.scheme == "ssh":  # the name of the account, which is no secret
        host = f"{user}@{host}"
    return "git+" + urlunsplit(parts._replace(netloc=host))


def requirement(said: str) -> str:
    """What the project depends on: a name, a URL, or the URL of a folder."""
    if said == INDEX:
        return "app-toolkit"
    return "app-toolkit @ " + (said if "://" in said else Path(said).expanduser().absolute().as_uri())


class Source(Extension):
    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        globals: dict[str, Any] = environment.globals
        globals["app_toolkit_source"] = source
        environment.filters["requirement"] = requirement
