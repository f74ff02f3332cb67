"""Cookiecutter keeps the last answers below the home folder, and takes defaults from there."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COOKIECUTTER_CONFIG", str(home / "config.yaml"))
    (home / "config.yaml").write_text(f"cookiecutters_dir: {home}/c\nreplay_dir: {home}/r\n")
