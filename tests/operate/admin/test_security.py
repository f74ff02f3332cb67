"""Who is served by the admin server, and what its responses tell a browser."""

import contextlib
import logging
import socket
from collections.abc import Iterator

import httpx
import pytest

from app_toolkit.errors import ConfigError
from app_toolkit.operate.admin import security, server
from app_toolkit.operate.admin.security import check_exposure, connection_owners, is_loopback, read_token
from tests.operate.admin.instance import Instance, serving
from tests.patience import PATIENCE_S, wait_until
from tests.security.other_user import needs_root, other_user

TOKEN = "c2VjcmV0-of-the-operator"
JSON = {"content-type": "application/json"}
SCALE = {"deployment": "shop/web", "num_replicas": 2}


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance()
    yield instance
    instance.close()


@pytest.fixture(scope="module")
def open_url(instance: Instance) -> Iterator[str]:
    with serving(instance) as url:
        yield url


@pytest.fixture(scope="module")
def guarded_url(instance: Instance) -> Iterator[str]:
    with serving(instance, TOKEN) as url:
        yield url


def get(url: str, **headers: str) -> httpx.Response:
    return httpx.get(url, headers=headers, trust_env=False)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://localhost:3000", "https://127.0.0.1", "http://[", "chrome://a"],
)
def test_request_of_another_origin_is_refused(open_url: str, origin: str) -> None:
    response = get(f"{open_url}/api/status", origin=origin)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    assert get(f"{open_url}/api/status", origin=open_url).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_request_of_another_site_is_refused_except_for_a_link_to_a_page(open_url: str, site: str) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert get(f"{open_url}/api/status", **headers).status_code == 403
    assert get(f"{open_url}/metrics", **headers).status_code == 403
    assert get(f"{open_url}/nothing.html", **headers).status_code == 403
    assert get(open_url, **headers).status_code == 200
    assert get(open_url, **{"sec-fetch-site": site}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8001", "127.0.0.1.evil.example", "[2001:db8::1]:80", ""]
)
def test_name_that_another_one_lets_resolve_to_this_machine_is_refused(open_url: str, host: str) -> None:
    assert get(f"{open_url}/api/status", host=host).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9999", "127.0.0.1:1", "[::1]:8001", "127.0.0.2"])
def test_names_of_this_machine_are_served(open_url: str, host: str) -> None:
    assert get(f"{open_url}/api/status", host=host).status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        None,
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.swapcase()}",
        "Bearer wrong-but-of-some-length",
    ],
)
def test_request_without_the_token_is_refused(guarded_url: str, value: str | None) -> None:
    headers = {} if value is None else {"authorization": value}
    for path in ("/api/status", "/metrics", "/api/openapi.json", "/api/nothing"):
        response = get(guarded_url + path, **headers)
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert TOKEN not in response.text


def test_token_is_taken_only_from_the_header(guarded_url: str) -> None:
    assert get(f"{guarded_url}/api/status", authorization=f"Bearer {TOKEN}").status_code == 200
    assert get(f"{guarded_url}/metrics", authorization=f"bearer {TOKEN}").status_code == 200
    assert get(f"{guarded_url}/api/status?token={TOKEN}&access_token={TOKEN}").status_code == 401
    assert get(f"{guarded_url}/api/status", cookie=f"token={TOKEN}").status_code == 401
    twice = [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")]
    assert httpx.get(f"{guarded_url}/api/status", headers=twice, trust_env=False).status_code == 401


@pytest.mark.parametrize(
    "target",
    [
        *(
            "/api/status",
            "//api/status",
            "/API/status",
            "/api/status/",
            "/%61pi/status",
            "/api%2Fstatus",
            "/./api/status",
        ),
        *("/pages/../api/status", "/pages/..%2f../metrics", "/metrics/", "/Metrics", "/api/../metrics", "/metrics;a=b"),
        *("/index.html/../metrics", "http://127.0.0.1/metrics", "/metrics?", "/%2e%2e/%2e%2e/security.py", "/main.py"),
    ],
)
def test_no_other_spelling_of_a_path_does_without_the_token(guarded_url: str, target: str) -> None:
    head = receive(guarded_url, f"GET {target} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
    assert head.startswith(b"HTTP/1.1 401 ")


def test_files_of_the_page_need_no_token(guarded_url: str) -> None:
    assert get(guarded_url).headers["content-type"].startswith("text/html")
    assert get(f"{guarded_url}/main.js").status_code == 200
    assert httpx.post(f"{guarded_url}/main.js", json={}, trust_env=False).status_code == 405


def test_reverse_proxy_may_pass_on_its_name_if_there_is_a_token(guarded_url: str) -> None:
    headers = {"host": "ops.example", "origin": "https://ops.example", "authorization": f"Bearer {TOKEN}"}
    assert get(f"{guarded_url}/api/status", **headers).status_code == 200
    assert get(f"{guarded_url}/api/status", **headers | {"origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize("token", [None, TOKEN])
def test_websocket_is_not_accepted(instance: Instance, token: str | None) -> None:
    handshake = (
        b"GET /api/live HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: http://evil.example\r\nconnection: upgrade\r\n"
        b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with serving(instance, token) as url:
        assert receive(url, handshake).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("fields", "body", "status"),
    [
        (b"content-length: 268435457", b"", 413),
        (b"content-length: " + b"9" * 5_000, b"", 400),
        (b"transfer-encoding: chunked", b"5\r\n[[[[[\r\n", 400),
        (b"content-length: 100000", b"[" * 100_000, 400),
        (b"x-long: " + b"a" * 1_000_000, b"", 400),
    ],
)
def test_long_and_deep_requests_are_refused(
    open_url: str, fields: bytes, body: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fields.startswith(b"transfer"):
        monkeypatch.setattr(security, "LONGEST_BODY", 4)
    head = b"POST /api/scale HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" + fields + b"\r\n\r\n"
    assert receive(open_url, head + body).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: ",
        b"GET /icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\nGET / HT",
        b"POST /api/scale HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx",
    ],
    ids=["nothing", "half a head", "half a second head", "half a body of a refused request"],
)
def test_connection_without_a_complete_request_is_closed(
    instance: Instance, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    with serving(instance, TOKEN) as url, connected(url) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(65_536):
                pass


def test_request_that_waits_for_a_change_is_not_closed(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.1)
    with serving(instance) as url:
        change = get(f"{url}/api/status").json()["change"]
        assert get(f"{url}/api/status?after={change}&timeout_s=0.5").status_code == 200


def test_connections_are_bounded(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 2)
    with serving(instance) as url, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connected(url)) for _ in range(4)]
        assert receive(url, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n") == b""
        waiting.pop().close()
        wait_until(lambda: receive(url, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").startswith(b"HTTP/1.1 503 "))


def connected(url: str) -> socket.socket:
    """A connection to the server at a URL."""
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def receive(url: str, sent: bytes) -> bytes:
    """The beginning of what the server answers; empty if it closes the connection."""
    with connected(url) as connection:
        try:
            connection.sendall(sent)
            return connection.recv(4_096)
        except (ConnectionResetError, BrokenPipeError):
            return b""


def test_failed_attempts_are_logged_without_their_values(
    guarded_url: str, instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(instance, TOKEN) as url, caplog.at_level(logging.DEBUG):
        get(f"{url}/api/status", authorization="Bearer a-guess-of-an-attacker")
        get(f"{url}/api/status", authorization=f"Bearer {TOKEN}x")
    assert "1 requests without the token, the last of 127.0.0.1 for '/api/status'" in caplog.text
    assert "a-guess" not in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_body_that_a_form_of_another_page_could_send_is_refused(open_url: str, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    response = httpx.post(f"{open_url}/api/scale", content=b"{}", headers=headers, trust_env=False)
    assert response.status_code == 415


def test_preflight_gets_no_permission(open_url: str) -> None:
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    response = httpx.options(f"{open_url}/api/scale", headers=headers, trust_env=False)
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_responses_protect_the_pages_and_set_no_cookie(open_url: str) -> None:
    for path in ("/api/status", "/metrics", "/nothing"):
        fields = get(open_url + path).headers
        assert "frame-ancestors 'none'" in fields["content-security-policy"]
        assert "unsafe" not in fields["content-security-policy"]
        assert fields["x-content-type-options"] == "nosniff"
        assert fields["cache-control"] == "no-store"
        assert "set-cookie" not in fields
        assert "server" not in fields


def test_owner_of_a_connection_is_found_while_it_is_open(open_url: str) -> None:
    assert get(f"{open_url}/api/status").status_code == 200
    assert connection_owners(("127.0.0.1", 1), ("127.0.0.1", 2)) == set()


@needs_root
def test_another_user_of_this_machine_is_refused_unless_it_has_the_token(
    open_url: str, guarded_url: str, instance: Instance
) -> None:
    program = """
    def status_of(url, *headers):
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as there:
            there.sendall("\\r\\n".join(["GET /api/status HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode())
            return int(there.recv(100).split()[1])

    open_url, guarded_url, token = sys.argv[1:]
    say([status_of(open_url), status_of(guarded_url, f"Authorization: Bearer {token}")])
    """
    with other_user(program, open_url, guarded_url, TOKEN, imports="import encodings.idna\n") as other:
        assert other.says() == [403, 200]


def test_address_that_other_machines_reach_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APP_TOOLKIT_ADMIN_TOKEN", raising=False)
    check_exposure("127.0.0.1")
    check_exposure("localhost")
    for host in ("0.0.0.0", "::", "192.0.2.7", "ops.example"):
        with pytest.raises(ConfigError, match=f"admin_host = '{host}': other machines .* APP_TOOLKIT_ADMIN_TOKEN$"):
            check_exposure(host)
    monkeypatch.setenv("APP_TOOLKIT_ADMIN_TOKEN", TOKEN)
    check_exposure("0.0.0.0")
    assert read_token() == TOKEN


@pytest.mark.parametrize("token", ["short", "with a space in it", "with\nnewline-in-it"])
def test_token_that_is_too_short_or_cannot_be_sent_is_refused_without_showing_it(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_TOOLKIT_ADMIN_TOKEN", token)
    with pytest.raises(ConfigError, match=r"^APP_TOOLKIT_ADMIN_TOKEN") as refused:
        read_token()
    assert token not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LocalHost."])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)
    assert not is_loopback(f"{host}.example")
