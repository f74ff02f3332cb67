"""Groups of tests that the test command of the README leaves out.

Some need programs or large packages, and are skipped without them. The others need nothing, but take long and check
files that few changes concern; `tests/conftest.py` marks them `slow`.

    python3 tests/groups.py changed              # the groups whose files have changed since the base commit
    python3 tests/groups.py install GROUP...     # install what they need, with apt (as root), pip and npm
    python3 tests/groups.py run GROUP...         # install it, and run their tests. None lacks a program
    python3 tests/groups.py all                  # install everything, and run all tests. None of these is skipped

It uses the environment `.venv` and only the standard library. The base commit is `APP_TOOLKIT_TEST_BASE`, or the newest
one that is at least 12 hours older than HEAD.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
BIN = ROOT / ".venv" / "bin"
NODE_MODULES = ROOT / ".venv" / "node" / "node_modules"

REQUIRE = "APP_TOOLKIT_TEST_REQUIRE"
"""The variable with the groups whose tests fail if they would be skipped, separated by commas."""

BASE = "APP_TOOLKIT_TEST_BASE"
AGE_S = 12 * 3600
"""Minimum age of the base commit relative to HEAD in seconds, by the times at which they were committed."""

TEMPLATES = "APP_TOOLKIT_TEST_TEMPLATES"

PUBLIC = (
    "app_toolkit/__init__.py",
    "app_toolkit/declare/deployment.py",
    "app_toolkit/instance.py",
    "app_toolkit/operate/instance.py",
    "app_toolkit/declare/planning.py",
    "app_toolkit/running.py",
    "app_toolkit/declare/split.py",
    "app_toolkit/declare/toolkit.py",
)
"""The modules that pages, examples and projects import."""

OF_ALL = ("pyproject.toml", "tests/groups.py")
"""A change of these files runs every group."""


@functools.cache
def sources() -> Mapping[str, str]:
    """Return the paths of all test files, relative to the repository, and their texts."""
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(TESTS.rglob("test_*.py"))}


@dataclass(frozen=True)
class Group:
    """Tests with the same requirements."""

    changes: tuple[str, ...]
    """Beginnings of the paths whose changes run the group, in addition to its own tests."""
    words: tuple[str, ...] = ()
    """A file `tests/**/test_*.py` that contains one of these belongs to the group."""
    paths: tuple[str, ...] = ()
    """A file `tests/**/test_*.py` whose path begins with one of these belongs to the group."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """The programs that the tests run, with the Debian packages that have them."""
    extra: str = ""
    """The extra of pyproject.toml that installs the Python packages."""
    npm: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables without which the tests are skipped."""
    unless: tuple[str, ...] = ()
    """A file that contains one of these belongs to another group."""

    def tests(self) -> list[str]:
        """Return the paths of the test files, relative to the repository."""
        return [
            path
            for path, source in sources().items()
            if (any(word in source for word in self.words) and not any(word in source for word in self.unless))
            or path.startswith(self.paths)
        ]


GROUPS = {
    "redis": Group(
        words=("redis_server",),
        changes=(
            "app_toolkit/streaming/",
            "app_toolkit/streaming/stream_log.py",
            "app_toolkit/chat/budgets.py",
            "app_toolkit/chat/shared_limits.py",
            "docs/stateful.md",
            "tests/streaming/redis_server.py",
        ),
        programs={"redis-server": "redis-server"},
    ),
    "postgresql": Group(
        words=("postgres_server",),
        changes=("app_toolkit/chat/conversations.py", "app_toolkit/chat/sql_conversations.py"),
        programs={"pg_ctlcluster": "postgresql"},
    ),
    "s3": Group(
        words=("moto.server",),
        changes=("app_toolkit/chat/files.py", "app_toolkit/chat/file_storage.py"),
        extra="test-s3",
    ),
    "prometheus": Group(
        words=("promtool",),
        changes=("app_toolkit/observability/", "docs/observability.md"),
        programs={"promtool": "prometheus"},
    ),
    "browser": Group(
        words=("playwright", "test_chat_page import"),
        changes=(
            "app_toolkit/operate/admin/",
            "app_toolkit/chat/",
            "app_toolkit/operate/dashboard/",
            "benchmarks/dashboard",
            "benchmarks/simulated",
            "app_toolkit/streaming/",
            "examples/chat/",
            "templates/chat/",
            "docs/tutorial/chat",
        ),
        programs={"chromium": "chromium"},
        extra="test-browser",
        unless=(TEMPLATES,),
    ),
    "transformers": Group(
        words=("tiny_model", "tests.chat import tiny"),
        changes=("app_toolkit/chat/transformers.py", "app_toolkit/chat/decoding.py", "tests/chat/tiny_model.py"),
        extra="transformers",
    ),
    "mcp": Group(
        words=("mcp_server",),
        changes=("app_toolkit/chat/mcp.py", "app_toolkit/chat/chain.py", "tests/chat/mcp_server.py"),
        extra="mcp",
    ),
    "clients": Group(
        words=("tests.chat.node", "tests.chat.client_cases", "APP_TOOLKIT_TEST_NODE_MODULES"),
        changes=(
            "app_toolkit/chat/",
            "benchmarks/apps/clients/",
            "docs/chat-ag-ui.md",
            "docs/chat-anthropic.md",
            "docs/chat-ollama.md",
            "docs/chat-clients.md",
            "tests/chat/node.py",
            "tests/chat/stored_chat.mjs",
        ),
        programs={"node": "nodejs", "npm": "npm", "chromium": "chromium"},
        extra="test-clients",
        npm=(
            *("ai", "openai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@anthropic-ai/sdk", "@ai-sdk/anthropic"),
            "@ag-ui/client",
            *("@assistant-ui/react-ai-sdk", "@assistant-ui/react", "@ai-sdk/react", "react", "react-dom"),
            *("esbuild", "playwright-core", "ollama"),
        ),
    ),
    "templates": Group(
        words=(TEMPLATES,),
        changes=("templates/", "examples/chat/static/"),
        programs={"chromium": "chromium", "node": "nodejs", "npm": "npm"},
        extra="test-browser",
        environment={TEMPLATES: "full"},
    ),
    "docs": Group(
        paths=(
            "tests/docs/test_client_pages",
            "tests/docs/test_commands",
            "tests/docs/test_hover",
            "tests/docs/test_operations",
            "tests/docs/test_pages",
            "tests/docs/test_tutorial",
        ),
        changes=(
            ".ci/run",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "README.md",
            "app_toolkit/cli/",
            "app_toolkit/operate/",
            "app_toolkit/config/",
            "docs/",
            "examples/",
            "mkdocs.yml",
            "tests/docs/",
            *PUBLIC,
        ),
    ),
    "examples": Group(
        paths=("tests/examples/test_embeddings", "tests/examples/test_minilm", "tests/examples/test_servers"),
        changes=(
            "app_toolkit/userapp/batch.py",
            "app_toolkit/calls/",
            "examples/",
            "tests/examples/",
            *PUBLIC,
        ),
    ),
    "typechecks": Group(
        paths=("tests/typechecks/",),
        changes=("app_toolkit/interfaces.py", "app_toolkit/calls/", "tests/typechecks/", *PUBLIC),
    ),
    "projects": Group(
        paths=("tests/templates/test_extension", "tests/templates/test_projects"),
        changes=("templates/", "tests/templates/", "app_toolkit/cli/new.py", *PUBLIC),
    ),
    "ecosystem": Group(
        paths=("tests/benchmarks/test_conformance", "tests/ecosystem/"),
        changes=(
            "app_toolkit/exchange/",
            "app_toolkit/edge/",
            "app_toolkit/replica/http/",
            "benchmarks/conformance/",
            "docs/stateful.md",
            "tests/ecosystem/",
        ),
    ),
    "observability": Group(
        paths=("tests/e2e/test_metrics", "tests/e2e/test_slow", "tests/e2e/test_traces"),
        changes=(
            "app_toolkit/operate/admin/",
            "app_toolkit/control/metrics.py",
            "app_toolkit/observability/slowest.py",
            "app_toolkit/observability/trace_context.py",
            "app_toolkit/host/process.py",
            "app_toolkit/observability/",
            "app_toolkit/exchange/",
            "app_toolkit/edge/",
            "app_toolkit/replica/",
            "app_toolkit/calls/remote.py",
        ),
    ),
    "scripts": Group(
        paths=("tests/e2e/test_scripts",),
        changes=("app_toolkit/operate/", "app_toolkit/engines/", "app_toolkit/operate/launch.py", *PUBLIC),
    ),
    "benchmarks": Group(paths=("tests/benchmarks/",), changes=("benchmarks/", "tests/benchmarks/")),
}


def selected(changed: Collection[str], groups: Mapping[str, Group] = GROUPS) -> list[str]:
    """Return the names of the groups that these changed files run."""

    def runs(group: Group) -> bool:
        of_group = {*OF_ALL, *group.tests()}
        return any(path in of_group or path.startswith(group.changes) for path in changed)

    return [name for name, group in groups.items() if runs(group)]


def changed_files(folder: Path = ROOT) -> list[str] | None:
    """Return the files that differ from the base commit, or None if there is no such commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    base = os.environ.get(BASE)
    if not base:
        before = int(git("log", "-1", "--format=%ct")) - AGE_S
        base = git("rev-list", "-1", f"--before={before}", "HEAD")
    return git("diff", "--name-only", base, "--").splitlines() if base else None


def required_tests(names: str) -> set[str]:
    """Return the test files of the groups in `REQUIRE`. Their tests must not be skipped."""
    required = [GROUPS[name] for name in names.split(",") if name]
    return {path for group in required if group.words for path in group.tests()}


def left_out_tests() -> set[str]:
    """Return the test files that need nothing and run only if a change concerns them."""
    return {path for group in GROUPS.values() if group.paths for path in group.tests()}


def install(names: Sequence[str]) -> None:
    """Install what the tests of these groups need. Raises `SystemExit` if that needs another user."""
    groups = [GROUPS[name] for name in names]
    missing = {package for each in groups for program, package in each.programs.items() if not shutil.which(program)}
    if missing:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise SystemExit(f"install these packages of your system: {', '.join(sorted(missing))}")
        execute("apt-get", "update", "--quiet")
        execute("apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *sorted(missing))
    extras = [each.extra for each in groups if each.extra]
    if "transformers" in extras:
        # A wheel for CPUs only, if PIP_FIND_LINKS offers one. The one of the index brings gigabytes of CUDA with it.
        execute(BIN / "pip", "install", "--quiet", "--no-index", "--no-deps", "torch", check=False)
    if extras:
        execute(BIN / "pip", "install", "--quiet", "-e", f".[test,{','.join(extras)}]")
    if npm := [package for each in groups for package in each.npm]:
        NODE_MODULES.parent.mkdir(exist_ok=True)
        execute("npm", "install", "--no-audit", "--no-fund", "--prefix", NODE_MODULES.parent, *npm)


def run(names: Sequence[str], tests: Sequence[str]) -> None:
    """Run tests in two processes. Those of these groups fail if they would be skipped."""
    environment = {**os.environ, REQUIRE: ",".join(names), "APP_TOOLKIT_TEST_NODE_MODULES": str(NODE_MODULES)}
    for name in names:
        environment |= GROUPS[name].environment
    execute(BIN / "pytest", "--numprocesses=2", *tests, environment=environment)


def execute(*command: str | Path, check: bool = True, environment: Mapping[str, str] | None = None) -> None:
    print("+", *command, flush=True)
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if check and done.returncode:
        raise SystemExit(done.returncode)


def main(command: str = "", *names: str) -> None:
    if command == "changed":
        changed = changed_files()
        for name in GROUPS if changed is None else selected(changed):
            print(name)
    elif command == "install":
        install(names)
    elif command == "run":
        for name in names:
            install([name])
            run([name], GROUPS[name].tests())
    elif command == "all":
        install([*GROUPS])
        run([*GROUPS], [])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
