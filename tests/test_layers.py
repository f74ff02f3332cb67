"""Which package may import which, and which may use the operating system."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import page

PACKAGE = Path(__file__).parent.parent / "app_toolkit"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"types", "errors", "interfaces", "clock", "private", "thread"}),
    frozenset({"config"}),
    frozenset({"core"}),
    frozenset({"transport", "observability", "userapp"}),
    frozenset({"dispatch"}),
    frozenset({"proxy", "router", "replica", "controller"}),
    frozenset({"toolkit", "planning", "deployment", "split"}),
    frozenset({"client", "host", "admin", "dashboard"}),
    frozenset({"engines"}),
    frozenset({"launch", "running", "aio", "streaming", "chat", "testing"}),
    frozenset({"cli"}),
)
"""From the bottom up. A file imports from layers below its own, and from its own package."""

MIXED = frozenset({0, 3, 6, 7, 8, 9})
"""Layers whose packages may import each other. Components never do: they use `interfaces`."""

STARTS = {"router.handle": "app_toolkit.engines.local", "toolkit": "app_toolkit.engines.one_process"}
"""Modules below the engines, each with the engine that one of its functions imports when it starts it. A program that
only declares its deployments imports no engine.
"""

IMPURE = {
    *("asyncio", "anyio", "threading", "multiprocessing", "concurrent", "subprocess", "socket", "selectors", "signal"),
    *("time", "datetime", "os", "io", "pathlib", "logging", "uuid", "secrets"),
    *("ray", "uvicorn", "fastapi", "starlette"),
}
"""Modules that `core` does not import."""


@dataclass(frozen=True)
class Import:
    module: str
    name: str | None
    line: int
    runtime: bool = True
    """False: only a type checker sees it."""
    deferred: bool = False
    """Whether a function imports it."""


def imports(tree: ast.Module) -> Iterator[Import]:
    nodes: list[tuple[ast.AST, bool, bool]] = [(tree, True, False)]
    while nodes:
        node, runtime, deferred = nodes.pop()
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno, runtime, deferred)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, runtime, deferred)
        checked = node.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else ()
        deferred = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        nodes += [(child, runtime and child not in checked, deferred) for child in ast.iter_child_nodes(node)]


def test_the_page_draws_every_package_in_its_layer() -> None:
    (drawing,) = page("docs/architecture.md").shown("text")
    packages = {path.stem for path in PACKAGE.iterdir() if path.stem.isalpha()}
    drawn = [re.split(r"\s{3,}", line.strip())[1].split() for line in drawing.splitlines()]
    engines = {path.stem for path in (PACKAGE / "engines").iterdir() if path.stem.isalpha()}
    expected = [engines if "engines" in layer else layer & packages for layer in reversed(LAYERS)]
    assert [set(layer) for layer in drawn] == expected


parse = functools.cache(ast.parse)


def layer_of(package: str) -> int | None:
    return next((number for number, packages in enumerate(LAYERS) if package in packages), None)


def breaches(module: str, source: str) -> list[str]:
    """Every rule that one file breaks; `module` is its dotted name below `app_toolkit`."""
    tree = parse(source)
    package, found = module.split(".")[0], []
    layer = layer_of(package)
    if layer is None:
        return [f"{module}: {package!r} is in no layer"]
    for each in imports(tree):
        where = f"{module}:{each.line}"
        if each.module.startswith("."):
            found.append(f"{where} imports relatively, which hides the layer")
        elif each.module == "app_toolkit" and layer_of(each.name or "") is None:
            # The names of `app_toolkit` itself come from the top layer.
            found.append(f"{where} imports from the package itself, not from the module")
        elif each.module == "app_toolkit" or each.module.startswith("app_toolkit."):
            other = each.name or "" if each.module == "app_toolkit" else each.module.split(".")[1]
            below = layer_of(other)
            if below is None:
                found.append(f"{where} imports {other!r}, which is in no layer")
            elif below > layer and not (each.deferred and STARTS.get(module) == each.module):
                found.append(f"{where} imports upwards: {other}")
            elif below == layer and other != package and layer not in MIXED:
                found.append(f"{where} imports {other}, which is in the same layer")
        root = each.module.split(".")[0]
        if root == "ray" and not module.startswith("engines.ray"):
            found.append(f"{where} imports ray outside engines.ray")
        if package == "core" and root in IMPURE:
            found.append(f"{where} imports {root}, which core must not use")
        if package == "core" and root == "random" and each.name != "Random":
            found.append(f"{where} imports from random something else than the type Random")
    if module not in ("config.settings", "engines.processes.systemd", "engines.ray.environment"):
        found += [f"{module}:{line} reads the environment" for line in _environment(tree)]
    return found


def _environment(tree: ast.Module) -> Iterator[int]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    for node in ast.walk(tree):
        if (isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os") or (
            isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}
        ):
            yield node.lineno


def cycle(sources: Mapping[str, str]) -> list[str] | None:
    """A circle of modules that import each other, wherever in the file they do."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        graph[module] = set()
        for each in imports(parse(source)):
            if each.runtime and each.module.startswith("app_toolkit."):
                target = each.module.removeprefix("app_toolkit.")
                inner = f"{target}.{each.name}"
                graph[module].add(inner if inner in sources else target)
        graph[module].discard(module)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return None


def modules() -> dict[str, str]:
    """Every file of the package by its dotted name, without the one that gathers the public names."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path.read_text("utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "__init__.py"
    }


def test_every_file_imports_only_from_lower_layers() -> None:
    found = [breach for module, source in modules().items() for breach in breaches(module, source)]
    assert not found, "\n".join(found)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycle(modules()) is None


@pytest.mark.parametrize(
    ("module", "source", "said"),
    [
        ("core.plan", "from app_toolkit.router.router import Router", "upwards"),
        ("core.plan", "from app_toolkit import Toolkit", "from the package itself"),
        ("config.models", "def f():\n    import app_toolkit.core.batch", "upwards"),
        ("toolkit", "from app_toolkit.engines.one_process import OneProcess", "upwards"),
        ("deployment", "def f():\n    from app_toolkit.engines.local import IN_PROCESS", "upwards"),
        ("router.router", "from app_toolkit.replica.admission.replica import Replica", "in the same layer"),
        ("proxy.server", "from ..router import router", "relatively"),
        ("attic.box", "", "no layer"),
        ("engines.one_process", "def f():\n    from ray.util import state", "outside engines.ray"),
        ("core.plan", "from asyncio import sleep", "must not use"),
        ("core.plan", "from random import choice", "Random"),
        ("cli.main", "import os\nos.environ['A']", "environment"),
        ("cli.main", "import os\nos.getenv('A')", "environment"),
        ("cli.main", "from os import environ", "environment"),
    ],
)
def test_the_check_sees_a_breach(module: str, source: str, said: str) -> None:
    found = breaches(module, source)
    assert any(said in breach for breach in found), found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.plan", "from random import Random\nfrom app_toolkit.config.models import Route"),
        ("engines.ray.actors", "import ray\nfrom app_toolkit.replica.admission.replica import Replica"),
        ("config.settings", "import os\nos.environ['A']"),
        ("engines.ray.environment", "import os\nos.environ['A']"),
        ("router.router", "from app_toolkit.router.permits import Turn"),
        ("toolkit", "def f():\n    from app_toolkit.engines.one_process import OneProcess"),
        ("cli.main", "from app_toolkit.planning import plan\nimport os\nos.getpid()"),
        ("engines.ray.controller", "from app_toolkit.client.commands import Command"),
    ],
)
def test_check_accepts_correct_imports(module: str, source: str) -> None:
    assert breaches(module, source) == []


def test_the_check_sees_a_circle() -> None:
    sources = {
        "a": "from app_toolkit.b import x",
        "b": "def f():\n    from app_toolkit import c\n    from app_toolkit.c import y",
        "c": "import app_toolkit.a",
    }
    assert set(cycle(sources) or ()) == {"a", "b", "c"}
    assert cycle({"a": "from app_toolkit.b import x", "b": ""}) is None
