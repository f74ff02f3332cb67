"""The structure of option models: their parts, how options are merged, and messages about mistakes."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

_STEM = r"[^\s.:/\\]([^.:/\\]*[^\s.:/\\])?"
MODULE = rf"{_STEM}(\.{_STEM})*"
"""Matches the name of a module. Its file may have a name that an `import` cannot have: `my-app.py`, `app copy.py`."""

OBJECT = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
"""Matches the name of an object in a module."""


class SecretValue(ValueError):
    """A mistake in an option whose value may be secret. Messages about it do not show the value."""


def sentence(
    mistake: ErrorDetails, display_name_of: Callable[[str], str], model: type[BaseModel], beside: Collection[str] = ()
) -> str:
    """Describe one mistake in the options of `model`: the option, its value and the limit.

    `display_name_of` returns the name of an option in messages. For an empty string, it returns the name of what has
    the options: a model, or a place in a file. `beside`: names that the same place may have, which are no options.
    """
    where = ".".join(str(part) for part in mistake["loc"])
    message = str(mistake["ctx"]["error"]) if mistake["type"] == "value_error" else mistake["msg"]
    if mistake["type"] == "extra_forbidden":
        return f"{display_name_of('')} has no option {where!r}{_instead(mistake['loc'], model, beside)}"
    if mistake["type"] == "value_error" and not where:
        return f"{display_name_of('')}: {message}"
    if mistake["type"] == "missing":
        return f"{display_name_of('')} needs {where!r}"
    if mistake["type"] == "value_error" and isinstance(mistake["ctx"]["error"], SecretValue):
        return f"{display_name_of(where)}: {message}"
    return f"{display_name_of(where)} = {mistake['input']!r}: {message[:1].lower()}{message[1:]}"


def _instead(place: tuple[int | str, ...], model: type[BaseModel], beside: Collection[str]) -> str:
    """Return what to append to the message about the unknown option at this place in `model`, or ""."""
    *around, option = place
    for name in around:
        field = model.model_fields.get(str(name))
        model = (parts(field) if field is not None else None) or model
    for name, field in model.model_fields.items():
        inner = parts(field)
        if inner is not None and option in inner.model_fields:
            return f"; it belongs in {name!r}"
    return nearest(str(option), [*model.model_fields, *(beside if not around else ())])


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the nearest of `names`, to append to the message that there is no `name`, or "" if none is near."""
    return "".join(f"; did you mean {meant!r}?" for meant in get_close_matches(name, [*names], n=1))


def description(model: type[BaseModel], option: str) -> str:
    """Return what an option of a model does: its description, or the text below it in the source code."""
    text = model.model_fields[option].description
    texts = (_texts(kind).get(option) for kind in model.__mro__ if option in vars(kind).get("__annotations__", {}))
    return text or next(filter(None, texts), "")


@cache
def _texts(model: type) -> dict[str, str]:
    """Return the texts below the options of a model, by option.

    They are read on demand: `use_attribute_docstrings` of pydantic would read them whenever a process starts.
    """
    (block,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(block, ast.ClassDef)
    return {
        option.target.id: inspect.cleandoc(str(text.value.value))
        for option, text in pairwise(block.body)
        if isinstance(option, ast.AnnAssign) and isinstance(option.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def parts(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a structured option, or of the values of a mapping; None: the option is a plain value."""
    for annotation in (field.annotation, *get_args(field.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
    return None


def marked(model: type[BaseModel], mark: str) -> frozenset[str]:
    """Return the options of a model that have a mark, such as `restarts`."""
    extras = {name: field.json_schema_extra for name, field in model.model_fields.items()}
    return frozenset(name for name, extra in extras.items() if isinstance(extra, dict) and extra.get(mark))


def by_name(field: FieldInfo) -> bool:
    """Return whether an option maps names to parts."""
    return get_origin(field.annotation) is dict


def merge(model: type[BaseModel], base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in `base`, replaced by those in `overrides`. Structured options are merged field by field."""
    merged = {**base, **overrides}
    for name in base.keys() & overrides.keys() & model.model_fields.keys():
        before, after, field = base[name], overrides[name], model.model_fields[name]
        inner = parts(field)
        if inner is None or not isinstance(before, Mapping) or not isinstance(after, Mapping):
            continue
        if by_name(field):
            merged[name] = {**before, **{key: merge(inner, before.get(key, {}), after[key]) for key in after}}
        else:
            merged[name] = merge(inner, before, after)
    return merged
