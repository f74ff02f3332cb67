"""Which package may import which, and which modules do no I/O."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import app_toolkit
import app_toolkit.chat
import app_toolkit.streaming
from tests.docs.pages import page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "app_toolkit"

APPS = sorted(path for folder in ("examples", "templates") for path in (ROOT / folder).rglob("*.py"))

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"types", "errors", "interfaces", "clock", "private", "thread"}),
    frozenset({"config"}),
    frozenset({"contract"}),
    frozenset({"observability", "userapp", "wire"}),
    frozenset({"control", "exchange"}),
    frozenset({"edge", "replica"}),
    frozenset({"calls"}),
    frozenset({"declare"}),
    frozenset({"host"}),
    frozenset({"operate"}),
    frozenset({"engines"}),
    frozenset({"instance", "running"}),
    frozenset({"streaming"}),
    frozenset({"chat"}),
    frozenset({"cli"}),
)
"""From the bottom up. A file imports from layers below its own, and from its own package."""

MIXED = frozenset({0, 3, 11})
"""Layers whose packages may import each other. The two planes never do: they meet in `contract`."""

DATA_PLANE = frozenset({"wire", "exchange", "edge", "replica", "calls"})
"""The packages that requests and calls pass. None of them imports `control`."""

PUBLIC = {
    module.__name__: frozenset(module.__all__) for module in (app_toolkit, app_toolkit.streaming, app_toolkit.chat)
}
PUBLIC["app_toolkit.chat"] |= app_toolkit.chat.NEEDS_EXTRA.keys()
"""The names that other packages may import, by module."""

EXTENSIONS = frozenset({"streaming", "chat"})
"""Packages that import public names only, except from themselves. `app_toolkit/__init__.py` imports none of them."""

STARTS = {
    "calls.handle": "app_toolkit.engines.one_process.calls",
    "declare.toolkit": "app_toolkit.engines.one_process.engine",
}
"""Modules below the engines, each with the engine that one of its functions imports when it starts it. A program that
only declares its deployments imports no engine.
"""

PURE = {
    *(
        "calls.model_slots",
        "chat.budgets",
        "chat.rate_limits",
        "chat.stop_strings",
        "chat.token_text",
        "config.redaction",
        "edge.forwarded",
    ),
    *("contract.compared", "contract.holdings", "contract.identity", "contract.loads", "contract.methods"),
    *(
        "contract.mirror_counts",
        "contract.replica_spec",
        "contract.routes",
        "contract.shares",
        "contract.snapshots",
        "contract.targets",
    ),
    *(
        "control.application",
        "control.application_specs",
        "control.autoscale",
        "control.backoff",
        "control.canary",
        "control.canary_analysis",
        "control.change",
        "control.command",
        "control.diff",
        "control.facts",
        "control.freeze",
    ),
    *(
        "control.history",
        "control.operations",
        "control.progress",
        "control.promotion",
        "control.publication",
        "control.reconcile",
        "control.recycling",
        "control.replica_set",
        "control.replica_state",
        "control.restart",
    ),
    *("control.revisions", "control.rollback", "control.shutdown", "control.status"),
    *("control.traffic", "control.weights"),
    *("exchange.allowed_time", "exchange.attempts", "exchange.cors", "exchange.filters.fault_choice"),
    *("exchange.preference", "exchange.queueing", "exchange.recent", "exchange.session_pins", "exchange.upload_rate"),
    *("observability.log_query", "observability.slowest", "observability.stalls", "observability.trace_context"),
    *("replica.admission.after_disconnect", "replica.admission.reservations", "replica.admission.stage"),
    *("replica.http.floods", "streaming.outbox", "streaming.stream_log", "userapp.batch"),
}
"""Modules that decide or compute, and do no I/O. They get the time and random numbers as arguments."""

READS_ENVIRONMENT = {
    *("config.settings", "engines.processes.systemd", "engines.ray.environment"),
    *("chat.keys", "chat.openai.compatible"),
}
"""Modules that read environment variables. Those of `chat` read the ones that the user names."""

IMPURE = {
    *("asyncio", "anyio", "threading", "multiprocessing", "concurrent", "subprocess", "socket", "selectors", "signal"),
    *("time", "datetime", "os", "io", "pathlib", "logging", "uuid", "secrets"),
    *("ray", "uvicorn", "fastapi", "starlette"),
}
"""Modules that no pure module imports."""


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
    packages, engines = names(PACKAGE), names(PACKAGE / "engines")
    assert frozenset().union(*LAYERS) == packages
    drawn = [set(re.split(r"\s{2,}", line.strip())[2:]) for line in drawing.splitlines()]
    assert drawn == [engines if "engines" in layer else layer for layer in reversed(LAYERS)]


def names(folder: Path) -> set[str]:
    """The modules and packages of a folder."""
    paths = [*folder.glob("*.py"), *(init.parent for init in folder.glob("*/__init__.py"))]
    return {path.stem for path in paths if not path.stem.startswith("_")}


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
        elif package in EXTENSIONS and f"{each.module}.".startswith("app_toolkit."):
            is_inside = f"{each.module}.".startswith(f"app_toolkit.{package}.")
            if not is_inside and each.name not in PUBLIC.get(each.module, ()):
                found.append(f"{where} imports {each.name or each.module!r}, which is not public")
            elif each.module != "app_toolkit" and (layer_of(each.module.split(".")[1]) or 0) > layer:
                found.append(f"{where} imports upwards: {each.module}")
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
        is_pure = module in PURE
        if package in DATA_PLANE and f"{each.module}.".startswith("app_toolkit.control."):
            found.append(f"{where} imports control, which the data plane must not use")
        if is_pure and root in IMPURE:
            found.append(f"{where} imports {root}, which pure modules must not use")
        if is_pure and root == "random" and each.name != "Random":
            found.append(f"{where} imports from random something else than the type Random")
    if module not in READS_ENVIRONMENT:
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


def test_every_pure_module_exists() -> None:
    assert not PURE - modules().keys()


def test_every_file_imports_only_from_lower_layers() -> None:
    found = [breach for module, source in modules().items() for breach in breaches(module, source)]
    assert not found, "\n".join(found)


def test_the_package_gathers_no_name_of_an_extension() -> None:
    imported = {
        each.module.split(".")[1]
        for each in imports(parse((PACKAGE / "__init__.py").read_text("utf-8")))
        if each.module.startswith("app_toolkit.")
    }
    assert max(layer_of(package) or 0 for package in imported) < min(layer_of(package) or 0 for package in EXTENSIONS)


def test_examples_and_templates_import_public_names_only() -> None:
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in APPS}
    # Templates contain Jinja, so the parser of Python does not read them.
    imported = {
        (path, match["module"], name)
        for path, text in texts.items()
        for match in re.finditer(r"from (?P<module>app_toolkit[\w.]*) import (?P<names>\([^)]*\)|.*)", text)
        for name in re.findall(r"\w+", match["names"])
    }
    assert imported
    assert not [each for each in imported if each[2] not in PUBLIC.get(each[1], ())]


def test_the_reference_has_every_public_name() -> None:
    documented = {line.rpartition(".")[2] for line in page("docs/reference/api.md").text.splitlines() if "::: " in line}
    assert not {name for public in PUBLIC.values() for name in public} - documented


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycle(modules()) is None


@pytest.mark.parametrize(
    ("module", "source", "said"),
    [
        ("control.reconcile", "from app_toolkit.edge.server import ProxyServer", "upwards"),
        ("control.reconcile", "from app_toolkit import Toolkit", "from the package itself"),
        ("config.models", "def f():\n    import app_toolkit.userapp.batch", "upwards"),
        ("declare.toolkit", "from app_toolkit.engines.one_process.engine import OneProcess", "upwards"),
        ("declare.deployment", "def f():\n    from app_toolkit.engines.one_process.calls import IN_PROCESS", "upwards"),
        ("edge.server", "from app_toolkit.replica.admission.replica import Replica", "in the same layer"),
        ("edge.server", "from app_toolkit.control.status import Load", "data plane"),
        ("edge.server", "from ..exchange import router", "relatively"),
        ("chat.catalog", "from app_toolkit.calls.handle import options", "not public"),
        ("chat.catalog", "from app_toolkit.streaming.log import StreamLog", "not public"),
        ("chat.catalog", "from app_toolkit.streaming import outbox", "not public"),
        ("chat.catalog", "import app_toolkit.calls.handle", "not public"),
        ("streaming.shared", "from app_toolkit import calls", "not public"),
        ("streaming.shared", "from app_toolkit.chat import ChatModel", "upwards"),
        ("attic.box", "", "no layer"),
        ("engines.one_process.engine", "def f():\n    from ray.util import state", "outside engines.ray"),
        ("control.reconcile", "from asyncio import sleep", "must not use"),
        ("control.reconcile", "from random import choice", "Random"),
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
        ("control.reconcile", "from random import Random\nfrom app_toolkit.config.models import Route"),
        ("engines.ray.actors", "import ray\nfrom app_toolkit.replica.admission.replica import Replica"),
        ("config.settings", "import os\nos.environ['A']"),
        ("engines.ray.environment", "import os\nos.environ['A']"),
        ("exchange.router", "from app_toolkit.exchange.permits import Turn"),
        ("chat.catalog", "from app_toolkit import Bound\nfrom app_toolkit.streaming import StreamLog"),
        ("streaming.router", "from app_toolkit import Bound\nfrom app_toolkit.streaming.log import StreamLog"),
        ("declare.toolkit", "def f():\n    from app_toolkit.engines.one_process.engine import OneProcess"),
        ("cli.main", "from app_toolkit.declare.planning import plan\nimport os\nos.getpid()"),
        ("engines.ray.controller", "from app_toolkit.control.command import Command"),
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
