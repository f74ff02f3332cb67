"""The limits on the size of files, classes and functions, and unique class names."""

import ast
from collections.abc import Iterator, Mapping

import pytest

from tests.test_layers import modules

FILE, CLASS, FUNCTION = 600, 450, 60
"""The maximum numbers of lines."""


def sizes(module: str, source: str) -> Iterator[tuple[str, int, int]]:
    """The name, the lines and the limit of a file, and of each class and function in it."""
    yield module, source.count("\n"), FILE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            limit = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
            assert node.end_lineno is not None
            yield f"{module}:{node.name}", node.end_lineno - node.lineno + 1, limit


def shared(sources: Mapping[str, str]) -> set[str]:
    """The names that classes of several modules have."""
    names = [
        node.name for source in sources.values() for node in ast.parse(source).body if isinstance(node, ast.ClassDef)
    ]
    return {name for name in names if names.count(name) > 1}


def test_no_file_class_or_function_is_too_long() -> None:
    found = [size for module, source in modules().items() for size in sizes(module, source)]
    assert not {name: lines for name, lines, limit in found if lines > limit}


def test_no_two_classes_share_a_name() -> None:
    assert not shared(modules())


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 1\n" * 601, {"m": 601}),
        ("class A:\n" + "    x = 1\n" * 450, {"m:A": 451}),
        ("def f():\n" + "    x = 1\n" * 60, {"m:f": 61}),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * 60, {"m:f": 61}),
        ("def f():\n" + "    x = 1\n" * 59, {}),
    ],
)
def test_the_check_sees_what_is_too_long(source: str, found: dict[str, int]) -> None:
    assert {name: lines for name, lines, limit in sizes("m", source) if lines > limit} == found


def test_the_check_sees_a_shared_name() -> None:
    assert shared({"a": "class A: ...\nclass B: ...", "b": "class A: ..."}) == {"A"}
