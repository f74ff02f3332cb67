"""Clients of chats and of resumable streams, as their authors publish them, against one app in several forms.

Each client has an environment of its own and a list of cases. A case that an app without these routes cannot serve is
`not served`; every other case must pass in every form.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.conformance.relay import cutting
from benchmarks.contenders import Contender
from benchmarks.servers import CannotStart, started

ROOT = Path(__file__).parents[2]
APPS = ROOT / "benchmarks" / "apps" / "clients"
RUN_S = 600
CUT_AFTER = 1_500
"""Bytes of a response after which the relay cuts its connection."""

PASSED, NOT_SERVED = "passed", "not served"


@dataclass(frozen=True, slots=True)
class Client:
    """One client, and the module with its cases."""

    title: str
    module: str
    """Of `benchmarks/apps/clients`: `.py` or `.mjs`."""
    packages: tuple[str, ...]
    """Of PyPI or of npm. The first one is the client."""

    @property
    def is_node(self) -> bool:
        return self.module.endswith(".mjs")


CLIENTS = (
    Client("OpenAI SDK for Python", "openai_client.py", ("openai",)),
    Client("OpenAI SDK for Node", "openai_client.mjs", ("openai", "zod")),
    Client("Anthropic SDK for Python", "anthropic_client.py", ("anthropic",)),
    Client("Anthropic SDK for Node", "anthropic_client.mjs", ("@anthropic-ai/sdk",)),
    Client("AI SDK, `@ai-sdk/anthropic`", "anthropic_provider.mjs", ("@ai-sdk/anthropic", "ai")),
    Client("LiteLLM, provider `anthropic`", "litellm_client.py", ("litellm",)),
    Client("AI SDK, `@ai-sdk/openai`", "openai_provider.mjs", ("@ai-sdk/openai", "ai")),
    Client("AI SDK, `@ai-sdk/openai-compatible`", "openai_compatible.mjs", ("@ai-sdk/openai-compatible", "ai")),
    Client("AI SDK 5, chats of `useChat`", "ai_sdk.mjs", ("ai@5",)),
    Client("AI SDK 6, chats of `useChat`", "ai_sdk.mjs", ("ai@6",)),
    Client("AI SDK 7, chats of `useChat`", "ai_sdk.mjs", ("ai@7",)),
    Client(
        "assistant-ui, `@assistant-ui/react-ai-sdk`",
        "assistant_ui.mjs",
        (
            *("@assistant-ui/react-ai-sdk", "@assistant-ui/react", "@ai-sdk/react", "ai"),
            *("react", "react-dom", "esbuild", "playwright-core"),
        ),
    ),
    Client("Open WebUI in Chromium", "open_webui_client.py", ("open-webui", "playwright")),
    Client("Ollama for Python", "ollama_client.py", ("ollama",)),
    Client("Ollama for JavaScript", "ollama_client.mjs", ("ollama",)),
    Client("`@ag-ui/client`", "ag_ui_client.mjs", ("@ag-ui/client",)),
    Client(
        "CopilotKit, `@copilotkit/react-core`",
        "copilotkit.mjs",
        (
            *("@copilotkit/react-core", "@copilotkit/core", "@copilotkit/runtime", "@ag-ui/client", "zod"),
            *("react", "react-dom", "esbuild", "playwright-core"),
        ),
    ),
    Client("LangChain", "langchain_client.py", ("langchain-openai",)),
    Client("OpenAI Agents SDK", "agents_client.py", ("openai-agents",)),
    Client("Pydantic AI", "pydantic_ai_client.py", ("pydantic-ai-slim[openai]",)),
    Client("`eventsource` for Node", "eventsource.mjs", ("eventsource",)),
    Client("`httpx-sse`", "httpx_sse_client.py", ("httpx-sse", "httpx>=0.28")),
    Client("`websockets`", "websockets_client.py", ("websockets",)),
)

TOOLKIT = "{python} -P -m app_toolkit.cli"
APP = "{apps}/clients/chats.py:app"
FORMS = {
    "uvicorn": "{python} -m uvicorn chats:app --app-dir {apps}/clients --port {port} --log-level warning",
    "dev": f"{TOOLKIT} dev {APP} --port {{port}} --no-reload",
    "run": f"{TOOLKIT} run {APP} --port {{port}}",
    "run -n 2": f"{TOOLKIT} run {APP} --port {{port}} -n 2",
}

Cases = dict[str, dict[str, str]]
"""Case → form → verdict."""


def run(
    known: Mapping[str, Any], chosen: Sequence[str] = (), forms: Sequence[str] = tuple(FORMS)
) -> Iterator[dict[str, Any]]:
    """Run the cases of the clients, and yield all results after each form.

    Parameters:
        known: Earlier results, which the new ones replace.
        chosen: Modules of clients without their endings. Default: all.
        forms: Names of forms. Default: all.
    """
    clients = [each for each in CLIENTS if not chosen or Path(each.module).stem in chosen]
    environments = {each.title: _environment(each) for each in clients}
    versions = {each.title: _version(each, environments[each.title]) for each in clients}
    for form in forms:
        found: dict[str, Cases] = {}
        try:
            with started(contender(form)) as server, cutting(server.port, CUT_AFTER) as relay:
                for client in clients:
                    verdicts = _visit(client, environments[client.title], server.url, f"http://127.0.0.1:{relay}")
                    found[client.title] = {case: {form: verdict} for case, verdict in verdicts.items()}
                    for case, verdict in verdicts.items():
                        print(f"{form}: {client.title}: {case}: {verdict}", flush=True)
        except CannotStart as error:
            found = {client.title: {"start": {form: str(error)}} for client in clients}
        known = merged(known, {"versions": versions, "cases": found})
        yield known


def merged(known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return earlier results with those of the clients and forms that were run again."""
    cases: dict[str, Cases] = {}
    for title in (each.title for each in CLIENTS):
        before, now = known.get("cases", {}).get(title, {}), found["cases"].get(title, {})
        # A form that was run again has only the cases that there are now.
        again = {form for verdicts in now.values() for form in verdicts}
        kept = {case: {form: each[form] for form in each if form not in again} for case, each in before.items()}
        both = {case: {**kept.get(case, {}), **now.get(case, {})} for case in {**now, **kept}}
        if both := {case: verdicts for case, verdicts in both.items() if verdicts}:
            cases[title] = both
    versions = {**known.get("versions", {}), **found["versions"]}
    return {"versions": versions, "cases": cases, "differences": list(differences(cases))}


def differences(cases: Mapping[str, Cases]) -> Iterator[dict[str, str]]:
    """Yield the cases that have failed."""
    for title, of_client in cases.items():
        for case, verdicts in of_client.items():
            for form, verdict in verdicts.items():
                if verdict not in (PASSED, NOT_SERVED):
                    yield {"where": f"{title}: {case}", form: verdict}


def node_command(modules: Path, folder: Path, module: str) -> list[str]:
    """Return the command that runs a module of cases on Node.

    Parameters:
        modules: The `node_modules` folder.
        folder: An empty folder. A module finds packages only below a folder that it is in, so it is copied there.
        module: Name of the file in `benchmarks/apps/clients`.
    """
    for source in (*APPS.glob("*.mjs"), *APPS.glob("*.jsx")):
        shutil.copy(source, folder)
    (folder / "node_modules").symlink_to(modules)
    return ["node", str(folder / module)]


def _environment(client: Client) -> Path:
    """Return the environment of a client, which is made if there is none: its Python, or its `node_modules`."""
    name = re.sub(r"[^a-z0-9]+", "-", f"client-{'npm' if client.is_node else 'python'}-{client.packages[0]}")
    return (peers.node_modules if client.is_node else peers.environment)(name, client.packages)


def _visit(client: Client, environment: Path, url: str, relay: str) -> dict[str, str]:
    """Run the cases of a client, and return their verdicts. If it does not start, its error is the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        if client.is_node:
            command = node_command(environment, Path(folder), client.module)
        else:
            command = [str(environment), str(APPS / client.module)]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [*command, url, relay], env=environ, capture_output=True, text=True, timeout=RUN_S, check=False
        )
    if done.returncode:
        return {"start": f"failed: {done.stderr[-300:]}"}
    verdicts: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return verdicts


def _version(client: Client, environment: Path) -> str:
    """Return the version of the client itself."""
    package = re.sub(r"(?<=.)[@[].*", "", client.packages[0])  # a version or an extra; a scope begins with @
    if client.is_node:
        return str(json.loads((environment / package / "package.json").read_text())["version"])
    asked = [str(environment), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    return subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def contender(form: str) -> Contender:
    """Return the app as a form serves it."""
    command = FORMS[form]
    return Contender(
        name=f"chats ({form})",
        title=form,
        command=command,
        roles={},
        says="Serving " if " run " in command else "",
        gets="/running?word=any",
        environ={"PYTHONPATH": str(ROOT)},
    )
