"""How often the tests reach into the package: a test that uses private names fails when the code is put in order."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "app_toolkit"

MOST = 10
"""Uses of private names in all tests. Use a public name, or what can be observed, before you raise it."""


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def defined(tree: ast.Module) -> set[str]:
    """The private names that a file gives to something."""
    names: set[object] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            names.add(node.attr)
    return {name for name in names if isinstance(name, str) and is_private(name)}


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def called(call: ast.Call) -> str | None:
    """The name of a function, without that of its object or module."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each place at which a file uses a private name of something else, as `x._name` or as a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("app_toolkit"):
            yield from ((node.lineno, each.name) for each in node.names if is_private(each.name))
        elif isinstance(node, ast.Call) and called(node) in ("setattr", "getattr"):
            constants = (each.value for each in node.args if isinstance(each, ast.Constant))
            yield from ((node.lineno, str(value)) for value in constants if is_private(value))


def test_tests_use_few_private_names_of_the_package() -> None:
    private = set[str]().union(*(defined(ast.parse(path.read_text("utf-8"))) for path in PACKAGE.rglob("*.py")))
    found: list[str] = []
    for path in sorted(TESTS.rglob("*.py")):
        source = path.read_text("utf-8")
        if private.isdisjoint(re.findall(r"\b_\w+", source)):
            continue
        tree = ast.parse(source)
        foreign = private - defined(tree)
        found += [f"{path.relative_to(TESTS)}:{line} {name}" for line, name in used(tree) if name in foreign]
    assert len(found) <= MOST, "\n".join([f"{len(found)} uses:", *found])


def test_every_way_to_use_one_is_seen() -> None:
    ways = ["a._b", "from app_toolkit import _b", "x.setattr(a, '_b', 1)", "self.a._b = 1", "getattr(a, '_b')"]
    assert [list(used(ast.parse(way))) for way in ways] == [[(1, "_b")]] * len(ways)
    assert not list(used(ast.parse("from tests import _b; self._b = a.__class__")))
