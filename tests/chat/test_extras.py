"""Programs without the extras of the package import the rest of it."""

import subprocess
import sys

import pytest

WITHOUT = "import sys\nsys.modules.update(dict.fromkeys(('ag_ui', 'ag_ui.core', 'sqlalchemy')))\n"


def run_without_extras(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, timeout=60)


def test_all_names_of_the_chat_are_imported_without_an_extra() -> None:
    done = run_without_extras("from app_toolkit.chat import *\nprint(openai_router.__name__)")
    assert done.stdout == "openai_router\n", done.stderr


@pytest.mark.parametrize(("name", "extra"), [("ag_ui_router", "ag-ui"), ("SQLConversationStore", "conversations")])
def test_the_error_of_a_name_that_needs_an_extra_says_which(name: str, extra: str) -> None:
    done = run_without_extras(f"from app_toolkit.chat import {name}")
    assert f"pip install 'app-toolkit[{extra}]'" in done.stderr
