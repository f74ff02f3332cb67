"""Ray's access token is for this user alone, whoever made it."""

import os
import stat
import threading
from pathlib import Path

import pytest

from app_toolkit.engines.ray.token import make_token, restrict_token
from tests.security.other_user import NOBODY, needs_root


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_token_is_created_for_this_user_alone(home: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_token()
    finally:
        os.umask(before)
    token = home / ".ray" / "auth_token"
    assert (mode(token.parent), mode(token)) == (0o700, 0o600)
    assert len(bytes.fromhex(token.read_text())) == 32
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]


def test_processes_that_start_at_once_use_one_token(home: Path) -> None:
    seen = []

    def begin() -> None:
        make_token()
        seen.append((home / ".ray" / "auth_token").read_text())

    threads = [threading.Thread(target=begin, name=f"app-toolkit start {number}") for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1
    assert len(seen[0]) == 64


@pytest.mark.parametrize(
    ("name", "value"),
    [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "mine"), ("RAY_AUTH_TOKEN_PATH", "/run/token")],
)
def test_no_token_is_created_if_the_environment_names_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    make_token()
    assert not (home / ".ray").exists()


def test_a_token_that_others_can_read_is_made_private(home: Path) -> None:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.parent.chmod(0o755)
    token.write_text("known")
    token.chmod(0o644)
    restrict_token()
    assert (mode(token.parent), mode(token), token.read_text()) == (0o700, 0o600, "known")


def test_a_stricter_mode_is_kept(home: Path) -> None:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir(mode=0o700)
    token.write_text("known")
    token.chmod(0o400)
    restrict_token()
    assert mode(token) == 0o400


def test_a_link_and_its_target_are_not_changed(home: Path) -> None:
    (home / "elsewhere").write_text("known")
    (home / "elsewhere").chmod(0o644)
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").symlink_to(home / "elsewhere")
    restrict_token()
    assert mode(home / "elsewhere") == 0o644


def test_a_missing_token_is_ignored(home: Path) -> None:
    restrict_token()
    assert not list(home.iterdir())


@needs_root
def test_a_token_of_another_user_is_not_changed(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray").chmod(0o755)
    os.chown(home / ".ray", NOBODY, NOBODY)
    restrict_token()
    assert mode(home / ".ray") == 0o755
