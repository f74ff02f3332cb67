"""Count the lines of three backends of the same chat page, each of which serves the same client.

python -m benchmarks.chat_lines --write-docs

It needs Node, npm and redis-server.
"""

import argparse
import ast
import io
import json
import subprocess
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.contenders import Contender
from benchmarks.redis_server import RedisServer
from benchmarks.report import replace_section, table
from benchmarks.servers import Server, started

ROOT = Path(__file__).parents[1]
APPS = ROOT / "benchmarks" / "apps" / "chat_lines"
DOCS = ROOT / "docs" / "coming-from.md"
RESULTS = ROOT / "benchmarks" / "results-chat-lines.json"
HEADING = "A chat without app_toolkit"
PEER = "chat_lines"
CLIENT_S = 120

NOT_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend of the page."""

    title: str
    files: tuple[str, ...]
    libraries: str
    """What it imports for the chat."""
    needs: str
    """What it runs beside its own processes."""


BACKENDS: Mapping[str, Backend] = {
    "toolkit": Backend("app_toolkit", ("with_toolkit.py",), "app_toolkit", "–"),
    "fastapi": Backend("FastAPI", ("with_fastapi.py",), "FastAPI, sse-starlette, SQLAlchemy, redis-py", "Redis"),
    "litserve": Backend(
        "LitServe",
        ("with_litserve.py", "with_fastapi.py"),
        "LitServe, FastAPI, httpx, sse-starlette, SQLAlchemy, redis-py",
        "Redis, LitServe",
    ),
}
UVICORN = "{{python}} -m uvicorn {module}:app --app-dir {{apps}}/chat_lines --port {{port}} --workers 2"


def code_lines(source: str) -> int:
    """Return the number of lines of Python code without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def passed_checks(name: str) -> int:
    """Return the number of checks of the client that a backend passes.

    Raises:
        CannotStart: The backend does not start.
        RuntimeError: A check fails; the message has the output of the client.
    """
    modules = peers.node_modules("client-npm-ai-7", ("ai@7",))
    with tempfile.TemporaryDirectory() as folder, running(name) as server:
        client = Path(folder) / "client.mjs"
        client.write_text((APPS / "client.mjs").read_text())
        (Path(folder) / "node_modules").symlink_to(modules)
        command = ["node", str(client), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
    return int(done.stdout.split()[0])


@contextmanager
def running(name: str) -> Iterator[Server]:
    """Run a backend with two processes until the end of the block."""
    with ExitStack() as stack:
        if name == "toolkit":
            command = "{python} -P -m app_toolkit.cli run {apps}/chat_lines/with_toolkit.py:app --port {port} -n 2"
            yield stack.enter_context(started(_contender(name, command, says="Serving FastAPI")))
            return
        redis = RedisServer(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        redis.start()
        stack.callback(redis.kill)
        environ = {"REDIS_URL": redis.url}
        if name == "litserve":
            command = "{python} {apps}/chat_lines/with_litserve.py {port}"
            model = _contender("model", command, environ, peer=PEER, gets="/health")
            environ["MODEL_URL"] = stack.enter_context(started(model)).url
        command = UVICORN.format(module=f"with_{name}")
        yield stack.enter_context(started(_contender(name, command, environ, peer=PEER)))


def _contender(name: str, command: str, environ: Mapping[str, str] | None = None, **options: Any) -> Contender:
    environ = {"PYTHONPATH": str(ROOT), **(environ or {})}
    return Contender(name, name, command, roles={}, environ=environ, **{"gets": "/openapi.json", **options})


def measured() -> dict[str, Any]:
    """Return the lines and the passed checks of each backend."""
    if peers.interpreter(PEER) is None:
        peers.make_env(PEER)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "backends": {
            name: {
                "lines": {file: code_lines((APPS / file).read_text()) for file in backend.files},
                "checks": passed_checks(name),
            }
            for name, backend in BACKENDS.items()
        },
    }


def document(results: Mapping[str, Any]) -> str:
    """Return the section of docs/coming-from.md."""
    rows = [
        (
            backend.title,
            backend.libraries,
            backend.needs,
            f"{results['backends'][name]['checks']}",
            f"{sum(results['backends'][name]['lines'].values())}",
        )
        for name, backend in BACKENDS.items()
    ]
    return "\n\n".join(
        (
            "`benchmarks/apps/chat_lines` has the same backend of a chat page three times: the protocol of the AI SDK, "
            "API keys, conversations with branches in SQLite, stop and resume in each of two processes, a model that "
            "runs tools, and titles. The `ai` package of npm, with its transport of `useChat`, checks each of them.",
            table(("backend", "libraries", "further servers", "checks passed", "lines of code"), rows),
            f"Counted on {results['date']} by `python -m benchmarks.chat_lines --write-docs`, without blank lines, "
            "comments, docstrings and the model itself. The file that serves the model with LitServe has "
            f"{results['backends']['litserve']['lines']['with_litserve.py']} lines; LitServe has no part for the "
            "others, so they are those of FastAPI. The two without app_toolkit have no limits of sizes and of "
            "requests, no check of the origin, no migrations, and no search.",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.chat_lines", description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="write docs/coming-from.md")
    options = parser.parse_args()
    results = measured()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if options.write_docs:
        DOCS.write_text(replace_section(DOCS.read_text(), HEADING, document(results)))
    print(document(results))


if __name__ == "__main__":
    main()
