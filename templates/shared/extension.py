"""What all templates share: the check of the answers, the place of app_toolkit, and files that are written once."""

import json
import keyword
import re
import sys
from collections.abc import Mapping
from configparser import ConfigParser, Error
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from cookiecutter.exceptions import FailedHookException
from jinja2 import Environment, pass_context
from jinja2.ext import Extension
from jinja2.runtime import Context

SHARED = Path(__file__).resolve().parent
ROOT = SHARED.parents[1]
"""The checkout, or the folder of the installed package."""

PAGE = ROOT / "examples" / "chat" / "static"
INDEX = "index"

SCP = re.compile(r"(?P<host>[^/:]+):(?P<path>.+)")
"""A remote that SSH reaches: `git@github.com:organization/repository.git`."""

PACKAGES = {
    *("app_toolkit", "cookiecutter", "fastapi", "httpx", "httpx2", "numpy", "openai", "pydantic", "pytest", "ray"),
    *("redis", "starlette", "uvicorn"),
}
FOLDERS = {"build", "dist", "frontend", "load", "test", "tests"}
"""Folders and modules of a project, beside its package."""


def mistake(answers: Mapping[str, str]) -> str | None:
    """Return why no project can be made of these answers, or None."""
    name, slug, package = answers["project_name"], answers["project_slug"], answers["package_name"]
    if not name.strip() or not name.isprintable() or set('"\\') & set(name):
        return f"project_name {name!r} is empty, or has a quote, a backslash or a line break"
    if len(name) > 50:
        return f"project_name {name!r} has {len(name)} characters: use at most 50"
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", slug):
        return f"project_slug {slug!r} is not made of 1 to 63 small letters, digits and inner dashes"
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,49}", package):
        return f"package_name {package!r} is not a small letter followed by up to 49 small letters, digits and _"
    if keyword.iskeyword(package) or package in sys.stdlib_module_names:
        return f"package_name {package!r} is a word or a module of Python itself"
    if package in PACKAGES | FOLDERS:
        return f"package_name {package!r} would hide another package or folder of that name"
    return wrong_source(answers["app_toolkit"])


def wrong_source(source: str) -> str | None:
    """Return why app_toolkit cannot be installed from there, or None."""
    if source == INDEX:
        return None
    if set('"\\ ') & set(requirement(source).partition(" @ ")[2]):
        return f"app_toolkit {source!r} has a quote, a backslash or a blank"
    if "://" in source:
        return None
    path = Path(source).expanduser()
    if not path.is_absolute():
        return f"app_toolkit {source!r} is not index, a URL such as git+https://..., or the whole path of a checkout"
    if not (path / "pyproject.toml").is_file():
        return f"app_toolkit {source!r} is no checkout: it has no pyproject.toml"
    return None


def check(answers: Mapping[str, str]) -> str:
    """Refuse answers of which no project can be made. Cookiecutter calls this before it creates a folder.

    Raises:
        FailedHookException: One sentence, which the command `cookiecutter` prints.
    """
    if found := mistake(answers):
        raise FailedHookException(f"Error: {found}.")
    return "yes"


def source() -> str:
    """Return where app_toolkit came from.

    It is the checkout with these templates, the URL from which cookiecutter has cloned it, the place from which the
    package with these templates was installed, or else the index.
    """
    try:
        project = (ROOT / "pyproject.toml").read_text("utf-8")
    except OSError:
        return installed()
    if 'name = "app-toolkit"' not in project:
        return INDEX
    if ROOT.parent.name == ".cookiecutters":  # a clone that the next call of cookiecutter may remove
        git = ConfigParser(strict=False, interpolation=None)
        try:
            git.read(ROOT / ".git" / "config", "utf-8")
            return installable(git['remote "origin"']["url"])
        except (Error, KeyError):
            return INDEX
    return str(ROOT)


def installed() -> str:
    """Return from where pip has installed app_toolkit, as PEP 610 records it."""
    try:
        document = distribution("app-toolkit").read_text("direct_url.json")
    except PackageNotFoundError:
        return INDEX
    origin = json.loads(document) if document else {}
    url = origin.get("url", "")
    if vcs := origin.get("vcs_info"):
        return f"{installable(url)}@{vcs['commit_id']}"
    if url.startswith("file://"):
        path = Path(unquote(urlsplit(url).path))
        return str(path) if (path / "pyproject.toml").is_file() else url
    return url or INDEX


def installable(remote: str) -> str:
    """Return the URL from which pip installs a Git remote, without the credentials that it may have."""
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


def requirement(source: str, extra: str = "") -> str:
    """Return the dependency on app_toolkit with an extra: a name, a URL, or the URL of a folder."""
    name = f"app-toolkit[{extra}]" if extra else "app-toolkit"
    if source == INDEX:
        return name
    return f"{name} @ " + (source if "://" in source else Path(source).expanduser().absolute().as_uri())


def local_folder(source: str) -> str:
    """Return the folder that a container needs to install app_toolkit, or an empty text for another source."""
    if source == INDEX or ("://" in source and not source.startswith("file://")):
        return ""
    path = Path(unquote(urlsplit(source).path)) if "://" in source else Path(source).expanduser().absolute()
    return str(path.parent if path.suffix == ".whl" else path)


@pass_context
def shared(context: Context, name: str, **values: Any) -> str:
    """Return a file of the folder `shared`, rendered with the answers and `values`."""
    template = context.environment.from_string((SHARED / name).read_text("utf-8"))
    return template.render({**context.get_all(), **values}).rstrip("\n")


class Shared(Extension):
    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        functions: dict[str, Any] = environment.globals
        functions |= {"app_toolkit_source": source, "check": check, "page": PAGE.as_posix, "shared": shared}
        environment.filters |= {"requirement": requirement, "local_folder": local_folder}
