"""The configuration of an instance as an application file: written from what is deployed, and applied to it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from app_toolkit.client.client import Client
from app_toolkit.client.commands import Deploy, GetApplication, GetApplications
from app_toolkit.config.document import Document, from_yaml
from app_toolkit.config.fields import by_name, parts
from app_toolkit.config.files import FileApplication, parse
from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, DeploymentSpec, HTTPOptions, merge_overrides
from app_toolkit.config.options import InstanceOptions
from app_toolkit.config.render import Given, render
from app_toolkit.core.applications import proxy_options
from app_toolkit.core.identity import ApplicationKey
from app_toolkit.core.traffic import with_split
from app_toolkit.deployment import OF_HTTP, OF_INGRESSES
from app_toolkit.errors import ConfigError
from app_toolkit.planning import SHARED_LOG, SHARED_LOG_MODULE

SOURCE = "configuration"
"""The name of the document in messages."""

MOST_BYTES = 1024 * 1024
"""Bytes of a configuration. A YAML file of this size takes seconds to read."""

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
    mains = [
        spec for name, spec in specs.items() if not ApplicationKey.parse(name).is_candidate and not _is_shared_log(spec)
    ]
    given = {spec.name: {each.config.name: _options(each) for each in spec.deployments} for spec in mains}
    # The prefix of an application without HTTP has no effect, and in a file no two are the same.
    shown = [each.model_copy(update={"route_prefix": each.route_prefix or f"/{each.name}"}) for each in mains]
    return render(shown, InstanceOptions(**http.model_dump()), FOLDER, given, HEAD)


def read(content: bytes, *, is_json: bool) -> Document:
    """Return a configuration. Raises `ConfigError` if it is too long, or not YAML or JSON."""
    if len(content) > MOST_BYTES:
        raise ConfigError(f"the {SOURCE} has {len(content):,} bytes: at most {MOST_BYTES:,} are allowed")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the {SOURCE} is not UTF-8: {error.reason}") from None
    if not is_json:
        return from_yaml(text, SOURCE)
    try:
        return Document(SOURCE, json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the {SOURCE} is not JSON: {error}") from None


def change(client: Client, document: Document) -> dict[str, int]:
    """Give the instance the options of a configuration. Return the number of each new revision by application.

    Applications and options that it does not have stay as they are, and so does a secret that is shown as `***`.
    Applications that it does not change get no new revision. Only `deploy` changes code: it imports the app.

    Raises:
        ConfigError: The configuration has mistakes, or needs `deploy`. Then nothing has changed, unless the instance
            has refused the change of a later application.
        RevisionConflict: An application was changed at the same time.
    """
    instance, applications = parse(document, FOLDER, InstanceOptions)
    if instance.address is not None:
        raise ConfigError(f"{SOURCE}: remove address: the configuration is that of this instance")
    named = HTTPOptions(**{name: getattr(instance, name) for name in instance.model_fields_set - {"address"}})
    there, listening = client.execute(GetApplications())
    for name in applications.keys() - there.keys():
        raise ConfigError(f"{SOURCE}: there is no application {name!r}: `app-toolkit deploy` brings its code")
    found = {name: client.execute(GetApplication(name)) for name in applications}
    specs = {name: _changed(found[name][0], application) for name, application in applications.items()}
    changed = [name for name, spec in specs.items() if spec != found[name][0]]
    if proxy_options(listening, named) != listening and not changed:
        if not found:
            raise ConfigError(f"{SOURCE}: options of the proxies change together with an application: name one of them")
        changed = [next(iter(found))]
    commands = [Deploy(specs[name], named, expected=found[name][1], as_written=True) for name in changed]
    numbers = {command.spec.name: client.execute(command) for command in commands}
    return {name: number for name, number in numbers.items() if number != found[name][1]}


def _is_shared_log(spec: ApplicationSpec) -> bool:
    return spec.name == SHARED_LOG and spec.target == f"{SHARED_LOG_MODULE}:log"


def _options(deployment: DeploymentSpec) -> Given:
    """Return the options that are written even if they have their defaults: all that the deployment may have."""
    others = {"name"} if deployment.kind == "ingress" else {"name", *OF_INGRESSES, *OF_HTTP}
    return {name: value for name, value in _named(deployment.config).items() if name not in others}


def _named(options: BaseModel) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            found[name] = _named(value)
        elif isinstance(value, Mapping) and parts(field) is not None and by_name(field):
            found[name] = {key: _named(each) for key, each in value.items()}
        else:
            found[name] = None
    return found


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a value of JSON")


def _changed(before: ApplicationSpec, application: FileApplication) -> ApplicationSpec:
    """Return the deployed application with the options of the configuration.

    Raises `ConfigError` if it cannot have them.
    """
    options = application.options
    of_code: dict[str, object] = {
        "target": before.target,
        "app_dir": before.app_dir,
        "working_dir": before.working_dir,
        "include": [],
        "traffic": None,
    }
    for name, value in of_code.items():
        if name in options.model_fields_set and getattr(options, name) != value:
            raise ConfigError(
                f"{SOURCE}: applications.{application.name}.{name}: only `app-toolkit deploy` changes this, because it "
                "imports the app"
            )
    update: dict[str, Any] = {}
    if "route_prefix" in options.model_fields_set and before.route_prefix is not None:
        update["route_prefix"] = options.route_prefix
    if options.stream_log is not None:
        update |= {"stream_log": options.stream_log, "automatic_stream_log": False}
    if "loop" in options.model_fields_set:
        update["loop"] = options.loop
    if "logging_config" in options.model_fields_set:
        update["logging_config"] = application.logging_config
    for name in application.deployments:
        before.deployment(name)  # raises if there is none
    after = before.model_copy(
        update={
            **update,
            "deployments": tuple(
                _with_options(each, application.deployments.get(each.config.name, {})) for each in before.deployments
            ),
        }
    )
    for split, weights in options.splits.items():
        if weights != before.split(split).shares:
            after = with_split(after, split, weights)
    return after


def _with_options(deployment: DeploymentSpec, given: Mapping[str, Any]) -> DeploymentSpec:
    kind: type[DeploymentConfig] = type(deployment.config)
    return deployment.model_copy(update={"config": kind(**merge_overrides(deployment.config, given))})
