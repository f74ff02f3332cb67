"""The structure of option models: their parts, how options are merged, and messages about mistakes."""

from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from app_toolkit.config.suggestions import suggestion


def sentence(mistake: ErrorDetails, called: Callable[[str], str], model: type[BaseModel]) -> str:
    """Describe one mistake in the options of `model`: the option, its value and the limit.

    `called` gives the name of an option in messages; for an empty string, the name of the thing that has the options.
    """
    where = ".".join(str(part) for part in mistake["loc"])
    message = str(mistake["ctx"]["error"]) if mistake["type"] == "value_error" else mistake["msg"]
    if mistake["type"] == "extra_forbidden":
        return f"{called('')} has no option {where!r}{_instead(mistake['loc'], model)}"
    if mistake["type"] == "value_error" and not where:
        return f"{called('')}: {message}"
    if mistake["type"] == "missing":
        return f"{called('')} needs {where!r}"
    return f"{called(where)} = {mistake['input']!r}: {message[:1].lower()}{message[1:]}"


def _instead(place: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Suggest another option for the unknown one at this place below `model`."""
    *around, option = place
    for name in around:
        field = model.model_fields.get(str(name))
        model = (parts(field) if field is not None else None) or model
    inner = {name: found.model_fields for name, field in model.model_fields.items() if (found := parts(field))}
    return suggestion(str(option), model.model_fields, inner)


def parts(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a structured option, or of the values of a mapping; None: the option is a plain value."""
    for each in (field.annotation, *get_args(field.annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def by_name(field: FieldInfo) -> bool:
    """Return whether an option maps names to parts."""
    return get_origin(field.annotation) is dict


def merge(model: type[BaseModel], below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of options. Those in `above` replace those in `below`; structured options are merged by part."""
    merged = {**below, **above}
    for name in below.keys() & above.keys() & model.model_fields.keys():
        one, other, field = below[name], above[name], model.model_fields[name]
        inner = parts(field)
        if inner is None or not isinstance(one, Mapping) or not isinstance(other, Mapping):
            continue
        if by_name(field):
            merged[name] = {**one, **{key: merge(inner, one.get(key, {}), other[key]) for key in other}}
        else:
            merged[name] = merge(inner, one, other)
    return merged
