"""The configuration of an instance as an application file, written from what is deployed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from app_toolkit.config.fields import by_name, parts
from app_toolkit.config.models import ApplicationSpec, DeploymentSpec
from app_toolkit.config.options import InstanceOptions
from app_toolkit.config.render import Given, render
from app_toolkit.control.queries import GetApplications
from app_toolkit.declare.deployment import OF_HTTP, OF_INGRESSES
from app_toolkit.declare.planning import SHARED_LOG, SHARED_LOG_MODULE
from app_toolkit.operate.client import Client

FOLDER = Path()
"""No folder: those of a configuration stay as the specs have them."""

HEAD = """\
# The configuration of an instance. Relative folders begin at the folder of this file, so keep it beside the code if you
# deploy it. ${NAME} stands for the environment variable of the command that deploys it. "***" stands for a secret:
# replace it by the secret or by a reference before you deploy the file.
"""


def write(client: Client) -> str:
    """Return the configuration of the instance as a YAML file, with references to variables instead of their values.

    `***` stands for each secret that is plain text. The file contains the options of the proxies and the admin server,
    and each application with every option of its deployments. It does not contain live revisions beside the main ones,
    mirrors, and a shared stream log that the applications have brought with them.
    """
    specs, http = client.execute(GetApplications())
    mains = [spec for spec in specs.values() if not _is_shared_log(spec)]
    options = {
        spec.name: {deployment.config.name: _options(deployment) for deployment in spec.deployments} for spec in mains
    }
    # The prefix of an application without HTTP has no effect, and in a file no two are the same.
    shown = [spec.model_copy(update={"route_prefix": spec.route_prefix or f"/{spec.name}"}) for spec in mains]
    return render(shown, InstanceOptions(**http.model_dump()), FOLDER, options, HEAD)


def _is_shared_log(spec: ApplicationSpec) -> bool:
    return spec.name == SHARED_LOG and spec.target == f"{SHARED_LOG_MODULE}:log"


def _options(deployment: DeploymentSpec) -> Given:
    """Return the options that are written even if they have their defaults: all that the deployment may have."""
    others = {"name"} if deployment.kind == "ingress" else {"name", *OF_INGRESSES, *OF_HTTP}
    return {name: value for name, value in _named(deployment.config).items() if name not in others}


def _named(options: BaseModel) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            named[name] = _named(value)
        elif isinstance(value, Mapping) and parts(field) is not None and by_name(field):
            named[name] = {key: _named(entry) for key, entry in value.items()}
        else:
            named[name] = None
    return named
