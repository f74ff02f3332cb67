"""The contenders, as plain data. `servers.py` starts them, and `measures.py` measures them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ITEM = '{"name": "x", "price": 1.5}'
HTTP = ("get_1", "get_32", "post_1", "post_32", "stream_8", "websocket", "download", "upload")
POST = ("post_1", "post_32")


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    title: str
    command: str
    """The command line that starts it, with the placeholders `{python}`, `{apps}`, `{port}` and `{admin_port}`."""
    roles: Mapping[str, str]
    """By role: a part of the command line of its processes. The first match counts; other processes are "other"."""
    says: str = ""
    """The text that it prints when it is ready. Empty: it is ready when it responds."""
    peer: str | None = None
    """The name of its environment in `peers.PEERS`. None: the current environment."""
    environ: Mapping[str, str] = field(default_factory=dict)
    measures: tuple[str, ...] = HTTP
    posts: tuple[str, str] | None = None
    """Path and JSON body of the POST request that checks whether it is ready. None: a GET request to `gets`."""
    gets: str = "/"


def _toolkit(replicas: int) -> Contender:
    return Contender(
        name=f"toolkit-{replicas}",
        title=f"app_toolkit, {_count(replicas)}",
        command="{python} -m app_toolkit.cli run {apps}/toolkit.py --engine ray "
        f"--host 127.0.0.1 --port {{port}} --num-replicas {replicas}",
        roles={"proxy": "_Proxy", "replica": "_Replica"},
        says="Serving ",
    )


RAY_SERVE_ROLES = {"proxy": "haproxy -", "replica": "ray::ServeReplica", "manager": "ray::"}


def _ray_serve_best(replicas: int) -> Contender:
    return Contender(
        name=f"ray-serve-best-{replicas}",
        title=f"Ray Serve, tuned, {_count(replicas)}",
        command=f"{{python}} {{apps}}/ray_serve.py {{port}} {replicas} 1000",
        roles=RAY_SERVE_ROLES,
        says="ready",
        peer="ray_serve",
        environ={"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"},
    )


def _count(replicas: int) -> str:
    return f"{replicas} replica" + "s" * (replicas > 1)


CONTENDERS: tuple[Contender, ...] = (
    Contender(
        name="bare",
        title="FastAPI on uvicorn, one process",
        command="{python} -m uvicorn bare:app --app-dir {apps} --port {port} --no-access-log --log-level warning",
        roles={"replica": "uvicorn"},
    ),
    _toolkit(1),
    _toolkit(2),
    Contender(
        name="ray-serve",
        title="Ray Serve, defaults",
        command="{python} {apps}/ray_serve.py {port} 1",
        roles={"proxy": "ray::ProxyActor", "replica": "ray::ServeReplica"},
        says="ready",
        peer="ray_serve",
    ),
    _ray_serve_best(1),
    _ray_serve_best(2),
    Contender(
        name="litserve",
        title="LitServe, 2 workers",
        command="{python} {apps}/lit.py {port}",
        roles={"server": ""},
        peer="litserve",
        measures=POST,
        posts=("/item", ITEM),
    ),
    Contender(
        name="bentoml",
        title="BentoML, 2 workers",
        command="{python} -m bentoml serve bento:Echo --working-dir {apps} --host 127.0.0.1 --port {port}",
        roles={"server": ""},
        peer="bentoml",
        measures=POST,
        posts=("/item", ITEM),
    ),
    Contender(
        name="mosec",
        title="Mosec, 2 workers",
        command="{python} {apps}/mosec_app.py --address 127.0.0.1 --port {port}",
        roles={"server": ""},
        peer="mosec",
        measures=POST,
        posts=("/item", ITEM),
    ),
)
