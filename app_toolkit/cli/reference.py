"""Generates the page of all options of a file from the models.

python -m app_toolkit.cli.reference > docs/reference/config.md
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app_toolkit.config.fields import by_name, description, parts
from app_toolkit.config.files import ApplicationOptions
from app_toolkit.config.models import UNINTERPRETED, ClassConfig, DeploymentConfig, Policy
from app_toolkit.config.options import InstanceOptions
from app_toolkit.declare.deployment import OF_INGRESSES

NONE = "–"

HEAD = """\
# Options of a file

`python -m app_toolkit.cli.reference > docs/reference/config.md` writes this page from the models of the options.
[The command line](../cli.md#applications-in-a-file) describes the file.

An option that the file does not set has the value of the code, or else its default. `resources.num_cpus` is the
option `num_cpus` in the table `resources`. NAME stands for any name. `null` means no value.
"""

INSTANCE = """\
## The instance

At the top of the file, beside `applications`; in pyproject.toml in `[tool.app_toolkit]`.
"""

APPLICATION = """
## An application

In `applications.NAME`. Relative folders begin at the folder of the file. The names of applications and deployments
have at most 64 small letters, digits, `-` and `_`.
"""

DEPLOYMENT = """
## A deployment

In `applications.NAME.deployments.NAME`. An *ingress* serves routes; the methods of a *class* are called. A class takes
`max_body_size` and `on_disconnect` only if it answers HTTP with a `__call__`. A change of an option marked ↻ replaces
the replicas; no other change does.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """One line of a table."""

    should_be: str
    default: str
    about: str
    restarts: bool


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *_instance(), *_application(), *_deployments()])


def _instance() -> Iterator[str]:
    yield INSTANCE
    yield from _single(InstanceOptions)


def _application() -> Iterator[str]:
    yield APPLICATION
    yield from _single(ApplicationOptions)


def _deployments() -> Iterator[str]:
    yield DEPLOYMENT
    yield "| option | type | default of an ingress | default of a class | |\n|---|---|---|---|---|"
    ingress, of_class = dict(_options(DeploymentConfig)), dict(_options(ClassConfig))
    for name, option in of_class.items():
        if name == "name":
            continue
        on_class = NONE if name.partition(".")[0] in OF_INGRESSES else option.default
        on_ingress = ingress[name].default if name in ingress else NONE
        about = (option if on_ingress == NONE else ingress[name]).about + (" ↻" if option.restarts else "")
        yield f"| `{name}` | {option.should_be} | {on_ingress} | {on_class} | {about} |"
    users = " and ".join(f"`{name}`" for name in UNINTERPRETED)
    callers = ", ".join(f"`{name}`" for name in Policy.model_fields)
    yield f"\n{callers}: callers apply these options, and a change of them at once. In {users}"
    yield "a text can refer to the environment: `${NAME}`."


def _single(model: type[BaseModel]) -> Iterator[str]:
    yield "| option | type | default | |\n|---|---|---|---|"
    for name, option in _options(model):
        yield f"| `{name}` | {option.should_be} | {option.default} | {option.about} |"


def _options(model: type[BaseModel], prefix: str = "", *, restarts: bool = False) -> Iterator[tuple[str, Option]]:
    """Yield the options of a model with their dotted names, in the order of the model."""
    whole = model.model_json_schema()
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        replaces = restarts or (isinstance(extra, dict) and bool(extra.get("restarts")))
        inner, dotted = parts(field), f"{prefix}{name}"
        if inner is not None:
            below = f"{dotted}.NAME." if by_name(field) else f"{dotted}."
            yield from _options(inner, below, restarts=replaces)
            continue
        schema = whole["properties"][name]
        default = NONE if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
        yield (
            dotted,
            Option(_should_be(schema, field), default, description(model, name).replace("|", "\\|"), replaces),
        )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _should_be(schema: Mapping[str, Any], field: FieldInfo) -> str:
    """Return the type of a value, from its JSON schema, and its bounds."""
    kinds = " or ".join(map(_kind, schema.get("anyOf", [schema])))
    words = [("ge", "from"), ("gt", "above"), ("le", "to")]
    bounds = [
        f"{word} {bound:,}"
        for name, word in words
        for item in field.metadata
        if (bound := getattr(item, name, None)) is not None
    ]
    return " ".join([f"{kinds}," if bounds and "or" in kinds.split() else kinds, *bounds])


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    words = {"boolean": "true or false", "string": "text", "object": "table", "array": "list"}
    kind: str = schema.get("type", "any value")
    return words.get(kind, kind)


if __name__ == "__main__":
    print(page())
