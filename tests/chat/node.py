"""The marks of tests that run the npm package of the AI SDK."""

import os
import shutil
from pathlib import Path

import pytest

FOLDER = os.environ.get("APP_TOOLKIT_TEST_NODE_MODULES", "")

MARKS = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(
        not FOLDER or not (Path(FOLDER) / "ai" / "package.json").is_file(),
        reason="APP_TOOLKIT_TEST_NODE_MODULES names no node_modules folder with the package ai",
    ),
]
