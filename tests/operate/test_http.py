"""The client over the admin API: the same results and errors as over a cluster."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import app_toolkit
from app_toolkit.cli.main import main
from app_toolkit.config.files import read_file
from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.operations import Deploy, Scale
from app_toolkit.control.queries import GetApplications, GetEvents, GetStatus
from app_toolkit.control.rollback import Rollback
from app_toolkit.errors import ConfigError, InstanceEnded, RevisionConflict
from app_toolkit.observability.log_query import LogQuery
from app_toolkit.operate.http import HTTPClient, HTTPEngine
from tests.control.specs import application
from tests.operate.admin.instance import Instance, serving
from tests.patience import PATIENCE_S, wait_until

TOKEN = "c2VjcmV0-of-the-operator"


@pytest.fixture
def instance() -> Iterator[Instance]:
    instance = Instance()
    instance.execute(Deploy(application(), HTTPOptions(port=8123)))
    wait_until(lambda: instance.execute(GetStatus()).status == "healthy")
    yield instance
    instance.close()


@pytest.fixture
def url(instance: Instance) -> Iterator[str]:
    with serving(instance) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[HTTPClient]:
    with HTTPClient(url) as client:
        yield client


def test_results_are_those_of_the_instance(client: HTTPClient, instance: Instance) -> None:
    assert client.execute(GetStatus()).applications[0].revision == 1
    assert client.execute(GetApplications()) == instance.execute(GetApplications())
    assert client.execute(GetEvents(last=2)).number == instance.execute(GetEvents()).number
    assert client.load() == instance.load()
    assert client.slow("shop", 3) == instance.slow("shop", 3)
    asked = LogQuery(level="error"), 5, {"node": {"web": "7"}}
    assert client.logs(*asked) == instance.logs(*asked)


def test_commands_are_performed(client: HTTPClient, instance: Instance) -> None:
    assert client.execute(Scale("shop/web", 2)) == 2
    options = HTTPOptions(keep_alive_timeout_s=9.0)
    spec = application(num_replicas=3, max_ongoing_requests=7)
    changed = Deploy(spec, options, {"hash": b"\xff\x00 binary"})
    revision = client.execute(changed)
    status = client.wait_until_serving({"shop": revision}, PATIENCE_S)
    assert status.applications[0].deployments[0].target == 3
    http = instance.execute(GetApplications())[1]
    assert (http.keep_alive_timeout_s, http.port) == (9.0, 8123), "only the options that are set explicitly change"
    assert client.change(Rollback("shop")).revision == revision + 1


@pytest.mark.anyio
async def test_the_methods_of_an_instance_work_over_its_admin_api(url: str) -> None:
    with app_toolkit.connect(admin_url=url) as instance:
        assert instance.scale("shop/web", 2) == 2
        assert [event.name for event in instance.events("shop", 1).events] == ["Available"]
        deploy = Deploy(application(max_ongoing_requests=7))
        instance.wait(deploy, instance.change(deploy))
        assert instance.rollback("shop", to=2).revision == 4
        assert [(each.number, each.state) for each in instance.history("shop")] == [(3, "earlier"), (4, "runs")]
    async with app_toolkit.connect_async(admin_url=url) as asynchronous:
        assert (await asynchronous.status()).applications[0].deployments[0].target == 2
        with pytest.raises(ConfigError, match=r"^the steps 5, 1 should rise$"):
            await asynchronous.rollout("shop", steps=[5, 1])
        with pytest.raises(ConfigError, match=r"^application 'shop' has no live revision"):
            await asynchronous.rollout("shop", guards=["p95<1.2x"], every=30)


def test_errors_of_commands_are_raised(client: HTTPClient) -> None:
    with pytest.raises(ConfigError, match=r"^there is no application 'none'$"):
        client.execute(Scale("none/web", 2))
    client.execute(Scale("shop/web", 2))
    client.wait_until_serving({"shop": 2}, PATIENCE_S)
    with pytest.raises(RevisionConflict, match="has revision 2, and revision 77 was expected"):
        client.execute(Deploy(application(), expected=77))


def test_token_is_sent_and_needed(instance: Instance) -> None:
    with serving(instance, TOKEN) as url:
        with HTTPClient(url, TOKEN) as client:
            assert client.execute(GetStatus()).epoch == 1
        with HTTPClient(url) as client, pytest.raises(ConfigError, match="needs the token"):
            client.execute(GetStatus())


def test_token_for_this_machine_does_not_go_to_a_proxy(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving(instance, TOKEN) as url, HTTPClient(url, TOKEN) as client:
        assert client.execute(GetStatus()).epoch == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port", ""])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="admin_url"):
        HTTPClient(url)


def test_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError) as refused:
        HTTPClient("http://me:pass-word@127.0.0.1:8001")
    assert "pass-word" not in str(refused.value)


def test_admin_api_that_does_not_answer_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^no admin API answers at http://127\.0\.0\.1:1: "):
        HTTPEngine().check("http://127.0.0.1:1")


def test_server_that_is_no_admin_api_is_named(client: HTTPClient, url: str) -> None:
    with HTTPClient(f"{url}/elsewhere") as other, pytest.raises(Exception, match="404, and not as an admin API"):
        other.execute(GetStatus())


def test_shutdown_waits_until_the_admin_server_has_ended(instance: Instance) -> None:
    with serving(instance) as url:
        client = HTTPClient(url)
        shutdown = threading.Thread(target=client.shutdown)
        shutdown.start()
        instance.wait()
        assert shutdown.is_alive()
    shutdown.join()


def test_instance_has_ended_if_its_admin_api_answers_no_more(instance: Instance) -> None:
    with serving(instance) as url:
        client = HTTPClient(url)
        client.execute(GetStatus())
    client.patience_s = 0.0
    with client, pytest.raises(InstanceEnded, match=f"^the admin API at {url} answers no more: "):
        client.execute(Scale("shop/web", 2))


def test_command_line_operates_an_instance_without_importing_ray(url: str) -> None:
    script = (
        "import sys\nsys.modules['ray'] = None\nfrom app_toolkit.cli.main import main\n"
        f"main(['scale', 'shop/web', '2', '--wait', '--admin-url', {url!r}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert "web: healthy, 2 of 2 running" in done.stdout


def test_configuration_that_the_command_prints_is_an_application_file(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main_returns(["config", "--admin-url", url])
    (tmp_path / "app.yaml").write_text(capsys.readouterr().out)
    file = read_file(tmp_path / "app.yaml")
    assert (file.instance.port, file.application("shop").options.target) == (8123, "shop:app")


def test_url_of_the_environment_is_used_and_an_address_overrides_it(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setenv("APP_TOOLKIT_ADMIN_URL", url)
    main_returns(["status"])
    assert "application shop at http://127.0.0.1:8123" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["status", "--address", "127.0.0.1:1"])
    assert ended.value.code == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["status", "--address", "auto", "--admin-url", url])
    assert "--address and --admin-url exclude each other" in capsys.readouterr().err


def main_returns(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
