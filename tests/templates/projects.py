"""Projects that are created from the templates."""

import os
import runpy
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cookiecutter.main import cookiecutter

CHECKOUT = Path(__file__).resolve().parents[2]
TEMPLATES = CHECKOUT / "templates"
NAMES = ("api", "batch-inference", "chat")


@dataclass(frozen=True)
class Kind:
    """A template with one of its choices."""

    template: str
    package: str
    answers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.template, *self.answers.values()])


KINDS = (
    Kind("api", "my_api"),
    Kind("batch-inference", "my_inference"),
    Kind("chat", "my_chat", {"frontend": "built-in"}),
    Kind("chat", "my_chat", {"frontend": "react"}),
)


def make(folder: Path, template: str = "api", **answers: str) -> Path:
    return Path(cookiecutter(str(TEMPLATES / template), no_input=True, output_dir=str(folder), extra_context=answers))


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # The configuration of the project counts, and not the one of the tests that run this.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=110,
    )


def extension(path: Path = TEMPLATES / "shared" / "extension.py") -> dict[str, Any]:
    """Return the names of the extension of the templates, which no package has."""
    return runpy.run_path(str(path))
