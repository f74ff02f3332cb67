"""The signature of a batch function, and the one that its callers see, in which every parameter has one `list` less."""

import ast
import functools
import inspect
import operator
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import Callee

EMPTY = inspect.Parameter.empty
POSITIONAL_ONLY, KEYWORD_ONLY = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator)


class NotAList(Exception):
    """An annotation is not a `list`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the arguments of single calls become those of a batch."""

    seen: inspect.Signature
    """The signature that callers see, including `self` of a method."""
    item: inspect.Signature
    """The signature without `self`."""
    has_self: bool
    shared: tuple[bool, ...]
    """For each parameter: whether it is a deployment, which all items of a batch share."""
    keywords: tuple[str, ...]
    """The last parameters, which can be passed only by name."""
    names: tuple[str, ...] | None
    """The names of all parameters; None: some cannot be passed by name."""

    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of one call, with defaults, in the order of the parameters. Raises TypeError."""
        if not kwargs and not self.keywords and len(args) == len(self.shared):
            return args
        if not args and self.names is not None and len(kwargs) == len(self.names):  # FastAPI calls by name only
            try:
                return tuple([kwargs[name] for name in self.names])
            except KeyError:
                pass  # `bind` below raises a better error
        bound = self.item.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def arguments(self, items: Sequence[tuple[Any, ...]]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for the batch function from the values of its items."""
        columns = [
            column[0] if shared else list(column)
            for shared, column in zip(self.shared, zip(*items, strict=True), strict=True)
        ]
        first = len(columns) - len(self.keywords)
        return columns[:first], dict(zip(self.keywords, columns[first:], strict=True))

    def sized(self, values: tuple[Any, ...]) -> list[Any]:
        """Return the arguments for `size_fn`: the values of one item, without those that are shared."""
        return [value for shared, value in zip(self.shared, values, strict=True) if not shared]


def shape_of(function: Callable[..., Any], *, stream: bool) -> Shape:
    """Return the shape of a batch function. Raises `ConfigError` for a parameter or a result that is not a `list`."""
    name = function.__qualname__
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=_evaluated(p.annotation, function)) for p in signature.parameters.values()]
    receiver = parameters[:1] if _is_method(name) and parameters and not _is_list(parameters[0]) else []
    shared, seen = [], []
    for parameter in parameters[len(receiver) :]:
        shared.append(_is_deployment(parameter))
        seen.append(parameter if shared[-1] else _of_one_item(parameter, name))
    if all(shared):
        raise ConfigError(f"@batch: {name} has no parameter that is a list, with one entry for each item")
    result = _evaluated(signature.return_annotation, function)
    if result is not EMPTY:
        try:
            result = _of_one_stream(result) if stream else _without_types(_element(result), BaseException)
        except NotAList:
            required = "an async iterator of lists" if stream else "a list"
            raise ConfigError(
                f"@batch: the result of {name} is {_text(result)}: it must be {required}, with one entry for each item"
            ) from None
    return Shape(
        seen=inspect.Signature([*receiver, *seen], return_annotation=result),
        item=inspect.Signature(seen),
        has_self=bool(receiver),
        shared=tuple(shared),
        keywords=tuple(p.name for p in seen if p.kind is KEYWORD_ONLY),
        names=None if any(p.kind is POSITIONAL_ONLY for p in seen) else tuple(p.name for p in seen),
    )


def _of_one_item(parameter: inspect.Parameter, function: str) -> inspect.Parameter:
    if parameter.kind in VARIADIC:
        raise ConfigError(f"@batch: {function} takes *{parameter.name}: name its parameters")
    try:
        annotation = _element(parameter.annotation)
    except NotAList:
        raise ConfigError(
            f"@batch: the parameter {parameter.name!r} of {function} is {_text(parameter.annotation)}: it must be a "
            "list, with one entry for each item, or a bound deployment"
        ) from None
    if isinstance(parameter.default, list) and get_origin(annotation) is not list:
        raise ConfigError(f"@batch: the default of {parameter.name!r} of {function} must be that of one item")
    return parameter.replace(annotation=annotation)


def _is_method(qualified_name: str) -> bool:
    around = qualified_name.rpartition(".")[0]
    return around != "" and not around.endswith("<locals>")


def _is_list(parameter: inspect.Parameter) -> bool:
    try:
        _element(parameter.annotation)
    except NotAList:
        return False
    return True


def _is_deployment(parameter: inspect.Parameter) -> bool:
    """Return whether FastAPI passes a bound deployment or a split to the parameter.

    As in `Annotated[Writer, Depends(writer)]`.
    """
    marks = [*getattr(parameter.annotation, "__metadata__", ()), parameter.default]
    dependencies = [getattr(mark, "dependency", None) for mark in marks]
    return any(isinstance(dependency, Callee) for dependency in dependencies)


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """Evaluate an annotation that is a string. Return the string itself if it uses names that are not defined here."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))
    except Exception:
        return annotation


def _element(annotation: Any) -> Any:
    """Return `X` of `list[X]`, also inside `Annotated`."""
    if isinstance(annotation, str):
        return ast.unparse(_element_node(_parsed(annotation)))
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return Annotated[(_element(inner), *metadata)]
    if annotation is list:
        return Any
    if get_origin(annotation) is not list:
        raise NotAList
    return get_args(annotation)[0]


def _of_one_stream(annotation: Any) -> Any:
    """Return `AsyncIterator[X]` of `AsyncIterator[list[X]]`, and similar types."""
    if isinstance(annotation, str):
        node = _parsed(annotation)
        if not isinstance(node, ast.Subscript):
            raise NotAList
        inner, *others = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        inside = ", ".join(ast.unparse(node) for node in (_element_node(inner), *others))
        return f"{ast.unparse(node.value)}[{inside}]"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin not in STREAMS:
        raise NotAList
    return origin[(_without_types(_element(arguments[0]), BaseException, NoneType), *arguments[1:])]


def _without_types(annotation: Any, *never: type) -> Any:
    """Remove the types that a caller never gets: `Score | HTTPException` becomes `Score`."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    left = [member for member in get_args(annotation) if not (isinstance(member, type) and issubclass(member, never))]
    return functools.reduce(operator.or_, left) if left else annotation


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise NotAList from None


def _element_node(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("list", "List", "typing.List"):
        return node.slice
    raise NotAList


def _text(annotation: Any) -> str:
    if annotation is EMPTY:
        return "not annotated"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
