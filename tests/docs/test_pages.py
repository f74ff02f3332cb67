"""The code and the commands of the pages work."""

import json
import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from app_toolkit.cli.target import load, resolve
from app_toolkit.planning import plan
from tests.checkers import mypy

from .pages import PAGES, ROOT, Page, page

README = page("README.md")
UNTYPED = [page("docs/batching.md"), page("docs/parity.md")]
"""Asserts that compare what `gather` gives with a list; a plugin for the tests of somebody else who writes no types."""

ON_A_CLUSTER = [page("docs/scripts.md"), page("docs/operations.md")]
"""They serve there: tests/e2e/test_scripts.py and tests/test_deployed.py run them on the session's."""

DRAWING = None
CHAT = "tests/docs/test_tutorial_chat.py"
CLIENTS = "tests/docs/test_client_pages.py"
ANSWERS = "tests/docs/test_tutorial.py::test_a_step_of_the_tutorial_answers_as_it_shows"
REFUSAL = "tests/proxy/test_outcomes.py::test_the_pages_show_a_refusal_and_an_access_record"
ADMIN = "tests/docs/test_admin.py"
GUNICORN = "tests/docs/test_gunicorn.py::test_the_project_of_the_page_answers_as_under_gunicorn"
SHOWN = {
    "README.md console": "tests/docs/test_tutorial.py::test_the_shop_of_the_readme_is_served_without_ray_as_it_shows",
    "docs/admin.md console": f"{ADMIN}::test_requests_of_the_page_are_answered",
    "docs/admin.md json": f"{ADMIN}::test_error_of_the_page_is_answered",
    "docs/admin.md text": ("tests/admin/test_security.py::test_reverse_proxy_may_pass_on_its_name_if_there_is_a_token"),
    "docs/architecture.md mermaid": DRAWING,
    "docs/architecture.md text": "tests/test_layers.py::test_the_page_draws_every_package_in_its_layer",
    "docs/autoscaling.md mermaid": DRAWING,
    "docs/autoscaling.md console": "tests/cli/test_status.py::test_page_shows_the_reason_of_a_target",
    "docs/batching.md yaml": "tests/docs/test_batching.py::test_the_file_of_the_page_tunes_the_endpoint_of_the_page",
    "docs/chat-ai-sdk.md tsx": (
        "tests/chat/ai_sdk/test_router.py::test_the_front_end_of_the_page_asks_routes_that_there_are"
    ),
    "docs/chat-openai.md console": "tests/chat/openai/test_router.py::test_the_command_of_the_page_is_answered",
    "docs/chat-openai.md py": "tests/chat/openai/test_sdk.py::test_the_sdk_reads_the_app_of_the_page",
    "docs/chat-websocket.md js": "tests/chat/websocket/test_node.py::test_the_client_of_the_page_continues",
    "docs/cli.md text": "tests/docs/test_commands.py::test_the_page_lists_the_commands_that_there_are",
    "docs/cli.md toml": "tests/docs/test_commands.py::test_the_defaults_of_the_page_are_taken",
    "docs/cli.md yaml": "tests/docs/test_operations.py::test_the_file_of_a_page_is_read",
    "docs/deployments.md yaml": ("tests/e2e/test_classes.py::test_variables_that_a_deployment_sets_itself_are_kept"),
    "docs/chat.md tsx": "tests/chat/test_stored_chat.py::test_the_page_names_routes_that_there_are",
    "docs/chat-clients.md js": f"{CLIENTS}::test_javascript_prints_the_shown_output",
    "docs/chat-clients.md py": f"{CLIENTS}::test_python_prints_the_shown_output",
    "docs/chat-clients.md yaml": f"{CLIENTS}::test_the_settings_of_librechat_name_routes_and_models_of_the_app",
    "docs/concepts.md mermaid": DRAWING,
    "docs/logs.md dockerfile": "tests/cli/test_configuration.py::test_commands_of_the_page_log_to_standard_output",
    "docs/logs.md ini": "tests/cli/test_configuration.py::test_commands_of_the_page_log_to_standard_output",
    "docs/logs.md json": "tests/observability/test_logs.py::test_records_in_json_are_one_line_each",
    "docs/logs.md py": "tests/observability/test_logs.py::test_a_formatter_of_the_app_uses_the_fields",
    "docs/logs.md text": "tests/observability/test_logs.py::test_a_record_has_its_time_and_the_id_of_its_request",
    "docs/logs.md yaml": "tests/config/test_files.py::test_an_application_may_have_a_logging_configuration",
    "docs/observability.md yaml": (
        "tests/observability/test_grafana.py::test_promtool_accepts_the_configuration_of_the_page"
    ),
    "docs/observability.md text": "tests/docs/test_observability.py::test_the_page_explains_events_that_there_are",
    "docs/migrate/gunicorn.md py": GUNICORN,
    "docs/migrate/gunicorn.md yaml": GUNICORN,
    "docs/operations.md console": "tests/docs/test_operations.py::test_deploy_prints_the_lines_of_the_page",
    "docs/processes.md ini": "tests/docs/test_pages.py::test_units_and_image_of_the_page_start_the_command",
    "docs/processes.md dockerfile": "tests/docs/test_pages.py::test_units_and_image_of_the_page_start_the_command",
    "docs/operations.md yaml": "tests/docs/test_operations.py::test_the_file_of_a_page_is_read",
    "docs/outcomes.md http": "tests/proxy/test_outcomes.py::test_the_page_shows_how_a_client_asks_for_less_time",
    "docs/outcomes.md json": REFUSAL,
    "docs/parity.md diff": DRAWING,  # of another repository; the steps below it say which
    "docs/processes.md text": (
        "tests/engines/processes/test_kills.py::test_the_page_shows_the_processes_of_an_instance"
    ),
    "docs/queues.md console": "tests/cli/test_status.py::test_page_shows_where_requests_wait",
    "docs/queues.md text": "tests/router/test_holders.py::test_a_full_deployment_is_reported_once_as_the_page_shows",
    "docs/stateful.md py": "tests/ecosystem/test_page.py::test_code_on_the_page_is_that_of_the_app",
    "docs/traffic.md http": "tests/docs/test_rate_limits.py::test_the_limit_of_the_page_refuses_what_the_page_shows",
    "docs/troubleshooting.md json": REFUSAL,
    "docs/traffic.md yaml": "tests/docs/test_traffic.py::test_a_request_may_name_its_own_faults_as_on_the_page",
    "docs/tutorial/app.md console": ANSWERS,
    "docs/tutorial/chat.md console": f"{CHAT}::test_the_chat_answers_as_the_page_shows",
    "docs/tutorial/chat.md html": f"{CHAT}::test_the_page_continues_a_response_after_a_reload_and_stops_it",
    "docs/tutorial/chat.md py": f"{CHAT}::test_the_sdk_reads_the_chat_as_the_page_shows",
    "docs/tutorial/deployment.md console": ANSWERS,
    "docs/tutorial/ingress.md console": ANSWERS,
    "docs/tutorial/deploy.md console": (
        "tests/docs/test_tutorial.py::test_the_shop_answers_on_processes_as_the_tutorial_shows"
    ),
    "docs/tutorial/streaming.md console": ANSWERS,
    "docs/tutorial/streaming.md py": "tests/docs/test_tutorial.py::test_the_tests_of_the_tutorial_pass",
    "examples/embeddings/README.md console": (
        "tests/examples/test_embeddings.py::test_requests_of_the_page_are_answered"
    ),
}
"""What holds each block that is neither code, which is run, nor commands, which test_commands.py has."""


def marked(name: str) -> str:
    (found,) = re.findall(rf"^<!-- {name} -->\n```bash\n(.*?)^```$", README.text, re.MULTILINE | re.DOTALL)
    return str(found).strip()


def test_the_application_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(README.code)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)  # of a test on Ray
    app, where = load(resolve("shop.py", folder=tmp_path))
    spec = plan(app, target=where, app_dir=str(tmp_path))
    assert {i.config.name: i.config.num_replicas for i in spec.deployments} == {"app": 1, "chat": "auto", "scorer": 2}
    with TestClient(app) as client:
        assert client.get("/score", params={"text": "tea"}).json() == 3
    del sys.modules["shop"]


@pytest.mark.parametrize(
    "module",
    [module for each in PAGES if each not in ON_A_CLUSTER for module in each.modules],
    ids=lambda module: module.name,
)
def test_python_on_every_page_can_be_run(module: Page) -> None:
    module.run()


def test_python_on_the_pages_is_right_to_mypy(tmp_path: Path) -> None:
    for module in (module for each in PAGES if each not in UNTYPED for module in each.modules):
        name = re.sub(r"\W", "_", module.name)
        (tmp_path / f"{name}.py").write_text(module.code)
    (tmp_path / "shop.py").write_text(page("docs/tutorial/streaming.md").code)
    (tmp_path / "test_shop.py").write_text(page("docs/tutorial/streaming.md").shown("py")[0])
    done = mypy("--strict", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_units_and_image_of_the_page_start_the_command() -> None:
    blocks = page("docs/processes.md").blocks
    unit = ConfigParser(interpolation=None)
    for block in blocks:
        if block.language == "ini":
            unit.read_string(block.text)
    assert unit["Socket"]["ListenStream"].isdigit()
    assert (unit["Service"]["Type"], unit["Service"]["KillMode"]) == ("notify", "mixed")
    program = unit["Service"]["ExecStart"].split("/")[-1]
    image = next(block.text for block in blocks if block.language == "dockerfile")
    (command,) = re.findall(r"^CMD (.*)$", image, re.MULTILINE)
    assert " ".join(json.loads(command)).startswith(program)
    assert program == "app-toolkit run main.py"


def test_every_other_block_is_held_by_a_test() -> None:
    shown = {(page.name, block.language) for page in PAGES for block in page.blocks}
    assert {f"{name} {language}" for name, language in shown if language not in {"python", "bash"}} == SHOWN.keys()
    for test in filter(None, SHOWN.values()):
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), test


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Page) -> None:
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.text):
        assert ((ROOT / page.name).parent / link).exists(), link


def anchors(page: Page) -> set[str]:
    """Where a link into the page may lead: its headings, as the site names them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", each) for each in words}


@pytest.mark.parametrize("each", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(each: Page) -> None:
    for path, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", each.text):
        target = page(os.path.normpath(Path(each.name).parent / path)) if path else each
        assert anchor in anchors(target), f"{path}#{anchor}"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    shown = subprocess.run([ROOT / ".ci/run", "show"], capture_output=True, text=True, check=True, cwd="/")
    assert shown.stdout.strip() == marked("test")
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_both_commands_make_their_own_environment() -> None:
    for command in (marked("run"), marked("test")):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def _leaves(navigation: Any) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    below = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for each in below for page in _leaves(each)]


def test_the_site_lists_every_page() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
    Loader.add_constructor("!relative", lambda loader, node: node.value)
    site = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)
    listed = {f"docs/{page}" for page in _leaves(site["nav"])}
    decisions = {
        page.name for page in PAGES if re.match(r"docs/decisions/\d", page.name)
    }  # listed on a page of their own
    assert listed | decisions == {page.name for page in PAGES if page.name.startswith("docs/")}


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_a_page_of_the_root_that_the_site_includes_has_no_relative_links(name: str) -> None:
    assert page(f"docs/{name.lower()}").text == f'--8<-- "{name}"\n'
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", page(name).text), "they would lead elsewhere on the site"
