"""Renders specs as a YAML file with every option, its unit and its meaning."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app_toolkit.config import references
from app_toolkit.config.fields import by_name, description, parts
from app_toolkit.config.files import ApplicationOptions
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import InstanceOptions

Given = Mapping[str, Any]
"""Options that are written even if they have their default values, because a file or the command line sets them."""

NOTHING: Given = {}

HEAD = """\
# Written by `app-toolkit plan --format yaml`. Commented lines show the value that applies without this file. A text
# in user_config and in resources.ray.runtime_env may refer to an environment variable with ${NAME}; a literal ${ is
# written $${.
"""

_PLAIN = re.compile(r"[A-Za-z_/.][\w/.-]*(:\w[\w/.-]*)*", re.ASCII)
_NO_TEXT = re.compile(r"null|true|false|[-+.]?(\d|inf|nan).*|\.", re.IGNORECASE)


def render(
    specs: Iterable[ApplicationSpec],
    instance: InstanceOptions,
    folder: Path,
    given: Mapping[str, Mapping[str, Given]] = NOTHING,
    head: str = HEAD,
    included: Mapping[str, Sequence[str]] = NOTHING,
) -> str:
    """Return a file in `folder` that results in these specs. The specs are as written, without resolved references.

    `given`: by application, then by deployment. `head`: the comment at the beginning. `included`: the option `include`
    by application.
    """
    lines = [*_options(instance, dict.fromkeys(instance.model_fields_set)), "applications:"]
    for spec in specs:
        application_lines = _application(spec, folder, given.get(spec.name, NOTHING), included.get(spec.name, ()))
        lines += _indented([f"{spec.name}:", *_indented(application_lines)])
    return head + "\n".join(lines) + "\n"


def _application(
    spec: ApplicationSpec, folder: Path, given: Mapping[str, Given], include: Sequence[str]
) -> Iterator[str]:
    config = references.each_text(spec.application_config.model_dump(), references.escape)
    if spec.automatic_stream_log:
        config["stream_log"] = None
    options = ApplicationOptions(
        **config,
        target=spec.target,
        route_prefix=spec.route_prefix or "/",
        splits={split.name: split.shares for split in spec.splits},
        app_dir=_from(folder, spec.app_dir),
        working_dir=_from(folder, spec.working_dir),
        include=list(include),
    )
    yield from _options(options, NOTHING)
    yield "deployments:"
    for deployment in spec.deployments:
        kind = "the app's own ingress" if deployment.config.name == spec.default else deployment.kind
        yield from _indented([f"{deployment.config.name}:  # {kind}"])
        deployment_given = given.get(deployment.config.name, NOTHING)
        yield from _indented(_indented(_options(deployment.config, deployment_given, without="name")))


def _from(folder: Path, path: str) -> str:
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path


def _options(options: BaseModel, given: Given, without: str = "") -> Iterator[str]:
    """Yield the lines of each option. Options that have their default and are not in `given` are commented out."""
    for name, field in type(options).model_fields.items():
        if name == without:
            continue
        value = getattr(options, name)
        inner = given.get(name) or NOTHING
        as_by_default = name not in given and value == field.get_default(call_default_factory=True)
        about = description(type(options), name)
        below = inner if isinstance(inner, Mapping) else NOTHING
        lines = _one(name, field, about, value, below, whole=as_by_default)
        yield from (f"# {line}" for line in lines) if as_by_default else lines


def _one(name: str, field: FieldInfo, about: str, value: Any, given: Given, *, whole: bool) -> Iterator[str]:
    """Yield the lines of one option.

    `about`: its description. `whole`: do not comment out parts of it that have their defaults.
    """
    about = f"  # {about}" if about else ""
    if isinstance(value, BaseModel):
        lines = _parts(value, given, whole)
    elif parts(field) is not None and by_name(field) and value:
        lines = []
        for key, nested in value.items():
            inner = _parts(nested, given.get(key) or NOTHING, whole)
            lines += _block(_text(key), inner)
    elif isinstance(value, Mapping) and value:
        lines = list(_mapping(value))
    else:
        yield f"{name}: {_value(value)}{about}"
        return
    first, *rest = _block(name, lines)
    yield f"{first}{about}"
    yield from rest


def _parts(options: BaseModel, given: Given, whole: bool) -> list[str]:
    return list(_options(options, dict.fromkeys(type(options).model_fields) if whole else given))


def _block(key: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a table. If all of them are comments, the value is `{}`, because YAML would read null."""
    if all(line.startswith("#") for line in lines):
        return [f"{key}: {{}}", *_indented(lines)]
    return [f"{key}:", *_indented(lines)]


def _mapping(value: Mapping[str, Any]) -> Iterator[str]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield f"{_text(key)}:"
            yield from _indented(_mapping(inner))
        else:
            yield f"{_text(key)}: {_value(inner)}"


def _value(value: Any) -> str:
    """Return a value on one line, as JSON; a simple text has no quotes."""
    if isinstance(value, str):
        return _text(value)
    return _flow(value)


def _flow(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value)


def _text(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and not _NO_TEXT.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    shown = (
        f"\\{letter}" if letter in '"\\' else letter if letter.isprintable() else f"\\U{ord(letter):08x}"
        for letter in text
    )
    return '"' + "".join(shown) + '"'


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
